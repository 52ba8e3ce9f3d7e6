"""Required objects of a suite on a Prefect server, and their comparison. Pure."""

from plumbline.deployment.items import (
    REGRESSION,
    UPGRADE_EVENT,
    WATCH,
    Item,
    desired,
    suite_parameters,
    suite_tag,
    training_deployment,
)
from plumbline.deployment.plan import PlanItem, compare_items, lines

__all__ = [
    "REGRESSION",
    "UPGRADE_EVENT",
    "WATCH",
    "Item",
    "PlanItem",
    "compare_items",
    "desired",
    "lines",
    "suite_parameters",
    "suite_tag",
    "training_deployment",
]
