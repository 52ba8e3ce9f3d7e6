"""Problems of a platform that alerts report, each with a key. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from plumbline.schema.alert_event import EVENTS, AlertEvent
from plumbline.schema.verdict import PlatformResult

_UNAVAILABLE = "unavailable"
_PARTS = 3
_UNKNOWN = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Problem of a platform: cause, failed check or missing record."""

    platform: str
    workload: str
    what: str
    """Cause code, else the failed check."""
    event: AlertEvent
    since_round: str = ""
    """Round in which it began, once the state has it; `since` is the time."""
    since: datetime = _UNKNOWN

    @property
    def key(self) -> str:
        """Return `PLATFORM/WORKLOAD/WHAT`, or `PLATFORM/WHAT` for a whole platform."""
        return "/".join(part for part in (self.platform, self.workload, self.what) if part)


def trouble_of(key: str, event: AlertEvent, since_round: str = "", since: datetime = _UNKNOWN) -> Trouble:
    """Return the problem with this key. Workload "" means all."""
    platform, *workload, what = key.split("/", _PARTS - 1)
    return Trouble(platform, "".join(workload), what, event, since_round, since)


def find_troubles(platform: str, result: PlatformResult, *, quorum_failed: bool = False) -> Iterator[Trouble]:
    """Yield a platform's problems: causes, else failed checks, and missing records.

    An optional platform may be missing, unless the round's quorum failed without it.
    """
    if result.unavailable and (quorum_failed or not result.optional):
        workloads = [""] if set(result.absent) == set(result.workloads) else list(result.absent)
        for workload in workloads:
            yield Trouble(platform, workload, _UNAVAILABLE, "unavailable")
    for event, kind in EVENTS.items():
        for detail in kind.raised_by(result) if kind.raised_by else ():
            yield Trouble(platform, "", "-".join(filter(None, (event, detail))), event)
    if result.verdict not in ("drift", "invalid"):
        return
    seen = set()
    named = [cause.workload for cause in result.causes] + [finding.workload for finding in result.findings]
    for workload in dict.fromkeys(named):
        outcome = result.workloads.get(workload, result.verdict)
        if outcome not in ("drift", "invalid"):
            continue
        codes = [cause.code for cause in result.causes if cause.code != "environment" and cause.workload == workload]
        checks = [
            finding.check for finding in result.findings if finding.outcome == outcome and finding.workload == workload
        ]
        for text in dict.fromkeys(codes or checks[:1]):
            seen.add(workload)
            yield Trouble(platform, workload, text, outcome)
    if not seen:
        yield Trouble(platform, "", result.verdict, result.verdict)
