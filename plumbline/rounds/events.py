"""Events of a round's verdict, for automations to react to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plumbline.schema.verdict import PlatformResult, RoundVerdict

__all__ = ["RoundEvent", "round_events"]

UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One event: `plumbline.round.VERDICT` or `plumbline.platform.VERDICT`."""

    name: str
    resource: Mapping[str, str]
    """Labels of what the event is about; `prefect.resource.id` is its identity."""
    payload: Mapping[str, Any] = field(default_factory=dict)


def round_events(verdict: RoundVerdict) -> tuple[RoundEvent, ...]:
    """Return one event for each platform, then one for the round.

    A platform without a record emits `plumbline.platform.unavailable` in place of its verdict.
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
        "causes": [{"code": one.code, "sure": one.sure, "workload": one.workload} for one in result.causes],
        "unavailable": result.unavailable,
    }
    return RoundEvent(f"plumbline.platform.{UNAVAILABLE if gone else result.verdict}", resource, payload)
