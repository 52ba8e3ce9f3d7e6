"""Troubles of a platform: what an alert is about, and the key by which it is told once. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plumbline.schema.suite import AlertEvent
from plumbline.schema.verdict import PlatformResult

__all__ = ["Trouble", "find_troubles", "place_of"]

_UNAVAILABLE = "unavailable"
_PARTS = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """One cause, failed check or absence, on one platform and, where it is known, in one workload."""

    platform: str
    workload: str
    what: str
    """The cause's code, else the failed check."""
    event: AlertEvent

    @property
    def key(self) -> str:
        """`PLATFORM/WORKLOAD/WHAT`, or `PLATFORM/WHAT` for a trouble of the whole platform."""
        return "/".join(part for part in (self.platform, self.workload, self.what) if part)


def place_of(key: str) -> tuple[str, str]:
    """Return platform and workload of a trouble's key; the workload is empty for one of the whole platform."""
    parts = key.split("/")
    return parts[0], parts[1] if len(parts) >= _PARTS else ""


def find_troubles(platform: str, result: PlatformResult) -> Iterator[Trouble]:
    """Yield what is wrong on `platform`: its causes, or where there is none its failed checks, and missing records."""
    if result.unavailable and not result.optional:
        workloads = [""] if set(result.absent) == set(result.workloads) else list(result.absent)
        for workload in workloads:
            yield Trouble(platform, workload, _UNAVAILABLE, "unavailable")
    if result.unjudged_nights:
        yield Trouble(platform, "", "unjudged", "unjudged")
    for metric in result.improved:
        yield Trouble(platform, "", f"improved-{metric}", "improved")
    if result.verdict not in ("drift", "invalid"):
        return
    seen = set()
    named = [one.workload for one in result.causes] + [one.workload for one in result.findings]
    for workload in dict.fromkeys(named):
        outcome = result.workloads.get(workload, result.verdict)
        if outcome not in ("drift", "invalid"):
            continue
        codes = [one.code for one in result.causes if one.code != "environment" and one.workload == workload]
        checks = [one.check for one in result.findings if one.outcome == outcome and one.workload == workload]
        for what in dict.fromkeys(codes or checks[:1]):
            seen.add(workload)
            yield Trouble(platform, workload, what, outcome)
    if not seen:
        yield Trouble(platform, "", result.verdict, result.verdict)
