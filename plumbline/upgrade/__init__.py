"""Upgrade gate: compare the same training under two dependency locks.

It names the packages that make a difference.
"""

from plumbline.environments.changes import PackageChange as PackageChange
from plumbline.environments.changes import changes_between as changes_between
from plumbline.upgrade.answer import UpgradeAnswer as UpgradeAnswer
