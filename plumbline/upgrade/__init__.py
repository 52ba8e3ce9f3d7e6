"""The upgrade gate: the same training under two lock files, and on drift the package that made it."""

from plumbline.upgrade.bisect import Bisection, Outcome, bisect
from plumbline.upgrade.locks import Change, changes_between, read_lock

__all__ = ["Bisection", "Change", "Outcome", "bisect", "changes_between", "read_lock"]
