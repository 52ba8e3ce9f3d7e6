"""Events that a suite can alert about. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from plumbline.schema.fact import Fact, fact
from plumbline.schema.verdict import PlatformResult

Level = Literal["failure", "warning", "success", "info"]


@dataclass(frozen=True, slots=True)
class EventKind:
    """Alert event: severity, and which platform result raises it."""

    level: Level
    raised_by: Callable[[PlatformResult], Mapping[str, Fact]] | None = None
    """Returns the fact for each detail, "" for none; its sentence is in `report/sentences.toml`."""


def _unjudged(result: PlatformResult) -> dict[str, Fact]:
    return {"": fact("alert.unjudged", num=result.unjudged_nights)} if result.unjudged_nights else {}


def _improved(result: PlatformResult) -> dict[str, Fact]:
    return {metric: fact("alert.improved", metric=metric) for metric in result.improved}


EVENTS: Mapping[str, EventKind] = {
    "drift": EventKind("failure"),
    "invalid": EventKind("failure"),
    "unavailable": EventKind("warning"),
    "recovered": EventKind("success"),
    "missed": EventKind("warning"),
    "left-on": EventKind("warning"),
    "unjudged": EventKind("warning", _unjudged),
    "improved": EventKind("info", _improved),
}
"""The events without `raised_by` come from verdicts, absences and the watch."""


def _known(event: str) -> str:
    if event not in EVENTS:
        raise ValueError(f"{event!r} is not an event: {', '.join(EVENTS)}")
    return event


AlertEvent = Annotated[str, Field(max_length=64), AfterValidator(_known)]


def is_good_news(event: str) -> bool:
    """Return whether an event is informational, needing no action."""
    return EVENTS[event].level in ("success", "info")
