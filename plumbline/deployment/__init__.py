"""Required objects of a suite on a Prefect server, and their comparison. Pure."""

from plumbline.deployment.items import (
    CONTROLLERS_POOL,
    GATE,
    REGRESSION,
    RESUMED,
    UPGRADE,
    UPGRADE_EVENT,
    WATCH,
    Item,
    desired,
    desired_at,
    gate_deployment,
    job_variables,
    pool_limit,
    suite_parameters,
    suite_tag,
    training_deployment,
)
from plumbline.deployment.plan_items import PlanItem, compare_items, lines

__all__ = [
    "CONTROLLERS_POOL",
    "GATE",
    "REGRESSION",
    "RESUMED",
    "UPGRADE",
    "UPGRADE_EVENT",
    "WATCH",
    "Item",
    "PlanItem",
    "compare_items",
    "desired",
    "desired_at",
    "gate_deployment",
    "job_variables",
    "lines",
    "pool_limit",
    "suite_parameters",
    "suite_tag",
    "training_deployment",
]
