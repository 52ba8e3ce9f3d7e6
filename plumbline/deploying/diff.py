"""Desired against observed: what has to be created or changed, and what stands there that nobody asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.deploying.items import Item

__all__ = ["Change", "compare_items", "lines"]


@dataclass(frozen=True, slots=True)
class Change:
    """One item, and what is to be done about it; `fields` hold (is, shall be) of each field that differs."""

    verb: Literal["create", "change", "keep", "extra"]
    item: Item
    fields: dict[str, tuple[Any, Any]]


def compare_items(wanted: Iterable[Item], observed: Iterable[Item]) -> tuple[Change, ...]:
    """Item by item, those wanted in their order, then those that are extra."""
    there = {(item.kind, item.name): item for item in observed}
    changes = []
    for item in wanted:
        known = there.pop((item.kind, item.name), None)
        if known is None:
            changes.append(Change("create", item, {}))
            continue
        differs = {
            key: (known.fields.get(key), value) for key, value in item.fields.items() if known.fields.get(key) != value
        }
        changes.append(Change("change" if differs else "keep", item, differs))
    return (*changes, *(Change("extra", item, {}) for item in there.values()))


def lines(changes: Iterable[Change]) -> list[str]:
    """The changes as a person reads them."""
    signs = {"create": "+", "change": "~", "keep": " ", "extra": "?"}
    told = []
    for change in changes:
        note = ", not in the suite (delete it with --prune)" if change.verb == "extra" else ""
        told.append(f"{signs[change.verb]} {change.item.kind} {change.item.name}{note}")
        told += [f"    {key}: {was!r} -> {shall!r}" for key, (was, shall) in change.fields.items()]
    return told
