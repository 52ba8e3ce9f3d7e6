"""What a suite wants to stand on a Prefect server, and how that differs from what stands there. Pure."""

from plumbline.deploying.diff import Change, compare_items, lines
from plumbline.deploying.items import UPGRADE_EVENT, Item, desired

__all__ = ["UPGRADE_EVENT", "Change", "Item", "compare_items", "desired", "lines"]
