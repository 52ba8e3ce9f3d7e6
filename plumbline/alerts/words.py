"""What an alert says: platform, cause and how sure it is, the numbers, since when, where to read on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from plumbline.alerts.troubles import Trouble
from plumbline.schema.suite import AlertEvent
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict

__all__ = ["Told", "tell_broken", "tell_missed", "tell_open", "tell_recovered", "tell_test"]

_MOST_FINDINGS = 3
_DIGEST = 64


@dataclass(frozen=True, slots=True)
class Told:
    """One thing to tell; its id is the same whenever it is told again for the same reason."""

    id: str
    event: AlertEvent
    about: str
    """The suite and the platform, or what else it is about: what is opened and what recovers."""
    subject: str
    body: str


def tell_open(verdict: RoundVerdict, trouble: Trouble, *, since_round: str, since: datetime) -> Told:
    """Return the message about a trouble."""
    result = verdict.platforms[trouble.platform]
    causes = [one for one in result.causes if (one.code, one.workload) == (trouble.what, trouble.workload)]
    cause = next(iter(causes), None)
    what = f"{cause.code} ({cause.sure})" if cause else trouble.what
    if trouble.event == "unjudged":
        what = f"nothing judged for {result.unjudged_nights} nights"
    elif trouble.event == "improved":
        what = f"{trouble.what.removeprefix('improved-')} is better than its reference: accept a new baseline"
    where = _place(result, trouble.platform, trouble.workload)
    lines = [
        *_cause_lines(cause),
        *_missing(result, trouble),
        *(_number(one) for one in _worst(result, trouble)),
        "new in this round"
        if since_round == verdict.round
        else f"since {since:%Y-%m-%d %H:%M %Z}, round {since_round}",
        *_links(verdict),
    ]
    subject = f"[plumbline] {verdict.suite}: {trouble.event} on {where}: {what}"
    if trouble.event == "unavailable":
        subject = f"[plumbline] {verdict.suite}: {where} is unavailable"
    about = _about(verdict, result, trouble.platform, trouble.workload)
    return Told(f"{verdict.round}/{trouble.key}/{trouble.event}", trouble.event, about, subject, "\n".join(lines))


def tell_recovered(verdict: RoundVerdict, platform: str, workload: str = "") -> Told:
    """Return the message that a platform, or one workload on it, passes again."""
    result = verdict.platforms[platform]
    where = _place(result, platform, workload)
    subject = f"[plumbline] {verdict.suite}: {where} has recovered"
    body = "\n".join([f"{where} passes in round {verdict.round}", *_links(verdict)])
    about = _about(verdict, result, platform, workload)
    key = f"{platform}/{workload}" if workload else platform
    return Told(f"{verdict.round}/{key}/recovered", "recovered", about, subject, body)


def _place(result: PlatformResult, platform: str, workload: str) -> str:
    """Return the platform, and the workload where the platform trains several."""
    return f"{platform}, {workload}" if workload and len(result.workloads) > 1 else platform


def _about(verdict: RoundVerdict, result: PlatformResult, platform: str, workload: str) -> str:
    """Return what the receiver keeps one incident for: the same for a trouble and for its end."""
    several = workload and len(result.workloads) > 1
    return f"{verdict.suite}/{platform}/{workload}" if several else f"{verdict.suite}/{platform}"


def _missing(result: PlatformResult, trouble: Trouble) -> list[str]:
    if trouble.event != "unavailable":
        return []
    why = result.absent.get(trouble.workload, "") if trouble.workload else result.unavailable
    return [f"no record: {why or result.unavailable}. Nothing is known of this platform in this round."]


def tell_missed(suite: str, due: datetime) -> Told:
    """A round did not run at all."""
    body = (
        f"The round of {suite} that was due at {due:%Y-%m-%d %H:%M %Z} did not start. Nothing was checked that night."
    )
    subject = f"[plumbline] {suite}: the nightly round did not run"
    return Told(f"missed/{due.isoformat()}", "missed", f"{suite}/missed", subject, body)


def tell_broken(suite: str, round_id: str, why: str, run: str) -> Told:
    """A round started, and came to no verdict."""
    lines = [
        f"Round {round_id} of {suite} started and came to no verdict. Nothing is known of that night.",
        why,
        *([f"run: {run}"] if run else []),
    ]
    subject = f"[plumbline] {suite}: a round came to no verdict"
    return Told(f"broken/{round_id}", "missed", f"{suite}/missed", subject, "\n".join(lines))


def tell_test(suite: str, now: datetime) -> tuple[str, str]:
    """Subject and body of a message that only proves that messages arrive."""
    body = f"This is a test of {suite}'s alerts, sent at {now:%Y-%m-%d %H:%M:%S %Z}. Nothing is wrong."
    return f"[plumbline] {suite}: test of the alerts", body


def _cause_lines(cause: Cause | None) -> list[str]:
    if cause is None:
        return []
    return [f"{cause.code}, {cause.sure}: {cause.why}", *(f"  {line}" for line in cause.evidence[:_MOST_FINDINGS])]


def _worst(result: PlatformResult, trouble: Trouble) -> list[Finding]:
    found = [one for one in result.findings if one.outcome == trouble.event and one.workload == trouble.workload]
    return found[:_MOST_FINDINGS]


def _number(finding: Finding) -> str:
    unit = f" {finding.unit}" if finding.unit else ""
    numbers = "" if finding.observed is None else f": {_value(finding.observed)}{unit}"
    wanted = "expected" if isinstance(finding.limit, str) else "the limit is"
    limit = "" if finding.limit is None else f", {wanted} {_value(finding.limit)}"
    against = f", against {finding.against}" if finding.against else ""
    detail = f": {finding.detail}" if finding.detail else ""
    return f"{finding.check}{numbers}{limit}{against}{detail}"


def _value(value: float | str) -> str:
    """A number at full precision; of a digest as much as tells it from another."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == _DIGEST else str(value)


def _links(verdict: RoundVerdict) -> list[str]:
    pairs = (("report", verdict.report), ("note", verdict.report_note), ("run", verdict.flow_run))
    return [f"round: {verdict.round}", *(f"{label}: {value}" for label, value in pairs if value)]
