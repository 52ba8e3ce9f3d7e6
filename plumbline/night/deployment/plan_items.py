"""Comparison of the desired Prefect objects with the server's. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.night.deployment.items import Item


@dataclass(frozen=True, slots=True)
class PlanItem:
    """Planned action on one object; `fields` maps each difference to (present, desired)."""

    verb: Literal["create", "change", "keep", "extra", "delete"]
    item: Item
    fields: dict[str, tuple[Any, Any]]


def compare_items(wanted: Iterable[Item], observed: Iterable[Item]) -> tuple[PlanItem, ...]:
    """Compare items: desired ones in order, then extra ones.

    An extra automation is deleted: it would go on acting on its own.
    """
    present = {(item.kind, item.name): item for item in observed}
    plan = []
    for item in wanted:
        known = present.pop((item.kind, item.name), None)
        if known is None:
            plan.append(PlanItem("create", item, {}))
            continue
        differs = {
            key: (known.fields.get(key), value) for key, value in item.fields.items() if known.fields.get(key) != value
        }
        plan.append(PlanItem("change" if differs else "keep", item, differs))
    left = present.values()
    return (*plan, *(PlanItem("delete" if item.kind == "automation" else "extra", item, {}) for item in left))


def lines(plan: Iterable[PlanItem]) -> list[str]:
    """Format the plan as text lines."""
    signs = {"create": "+", "change": "~", "keep": " ", "extra": "?", "delete": "-"}
    text = []
    for change in plan:
        note = ", not in the suite (delete it with --prune)" if change.verb == "extra" else ""
        text.append(f"{signs[change.verb]} {change.item.kind} {change.item.name}{note}")
        text += [f"    {key}: {before!r} -> {after!r}" for key, (before, after) in change.fields.items()]
    return text
