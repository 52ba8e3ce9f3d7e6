"""Events of a round's verdict, for automations. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.schema.verdict import PlatformResult, RoundVerdict

UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """Event `plumbline.round.VERDICT` or `plumbline.platform.VERDICT`."""

    name: str
    resource: Mapping[str, str]
    """Labels of the event's resource; `prefect.resource.id` is its identity."""
    payload: Mapping[str, Any] = field(default_factory=dict)


def round_events(verdict: RoundVerdict) -> tuple[RoundEvent, ...]:
    """Return an event per platform, then the round's event.

    A platform without a record emits `plumbline.platform.unavailable` instead of its verdict.
    """
    platforms = [_platform_event(verdict, name, result) for name, result in verdict.platforms.items()]
    resource = {"prefect.resource.id": f"plumbline.suite.{verdict.suite}", "plumbline.suite": verdict.suite}
    payload = {
        "round": verdict.round,
        "verdict": verdict.verdict,
        "platforms": {name: result.verdict for name, result in verdict.platforms.items()},
        "report": verdict.report,
    }
    return (*platforms, RoundEvent(f"plumbline.round.{verdict.verdict}", resource, payload))


def _platform_event(verdict: RoundVerdict, name: str, result: PlatformResult) -> RoundEvent:
    gone = bool(result.unavailable) and result.verdict == "inconclusive"
    resource = {
        "prefect.resource.id": f"plumbline.platform.{verdict.suite}.{name}",
        "plumbline.suite": verdict.suite,
        "plumbline.platform": name,
    }
    payload = {
        "round": verdict.round,
        "verdict": result.verdict,
        "workloads": dict(result.workloads),
        "causes": [{"code": cause.code, "sure": cause.sure, "workload": cause.workload} for cause in result.causes],
        "unavailable": result.unavailable,
    }
    return RoundEvent(f"plumbline.platform.{UNAVAILABLE if gone else result.verdict}", resource, payload)
