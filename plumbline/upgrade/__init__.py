"""The upgrade gate: the same training under two lock files, and on drift the package that made it."""

from plumbline.upgrade.bisect import Bisection, Outcome, bisect
from plumbline.upgrade.locks import PackageChange, changes_between, read_lock

__all__ = ["Bisection", "Outcome", "PackageChange", "bisect", "changes_between", "read_lock"]
