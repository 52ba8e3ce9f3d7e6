"""Upgrade gate: the same training under two locks.

It names the packages that make a difference.
"""

from plumbline.upgrade.answer import UpgradeAnswer
from plumbline.upgrade.changes import PackageChange, changes_between

__all__ = ["PackageChange", "UpgradeAnswer", "changes_between"]
