"""Upgrade gate: the same training under two locks.

It names the packages that make a difference.
"""

from plumbline.upgrade.answer import UpgradeAnswer as UpgradeAnswer
from plumbline.upgrade.changes import PackageChange as PackageChange
from plumbline.upgrade.changes import changes_between as changes_between
