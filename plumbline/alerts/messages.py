"""Text of alerts: platform, cause, certainty, numbers, start and links. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from plumbline.alerts.troubles import Trouble
from plumbline.schema.suite import AlertEvent
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict

__all__ = [
    "AlertMessage",
    "missed_message",
    "no_verdict_message",
    "probe_message",
    "recovery_message",
    "trouble_message",
    "unchecked_message",
]

_MOST_FINDINGS = 3
_DIGEST = 64


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """Message for alert receivers; repeated reports of one event have the same id."""

    id: str
    event: AlertEvent
    about: str
    """Incident key: the suite and the platform, or `SUITE/missed`."""
    subject: str
    body: str


def trouble_message(verdict: RoundVerdict, trouble: Trouble, *, since_round: str, since: datetime) -> AlertMessage:
    """Return the message about a trouble."""
    result = verdict.platforms[trouble.platform]
    causes = [entry for entry in result.causes if (entry.code, entry.workload) == (trouble.what, trouble.workload)]
    cause = next(iter(causes), None)
    text = f"{cause.code} ({cause.sure})" if cause else trouble.what
    if trouble.event == "unjudged":
        text = f"not judged for {result.unjudged_nights} nights"
    elif trouble.event == "improved":
        text = f"{trouble.what.removeprefix('improved-')} is better than its reference: accept a new baseline"
    where = _place(result, trouble.platform, trouble.workload)
    lines = [
        *_cause_lines(cause),
        *_missing(result, trouble),
        *(_number(entry) for entry in _worst(result, trouble)),
        "new in this round"
        if since_round == verdict.round
        else f"since {since:%Y-%m-%d %H:%M %Z}, round {since_round}",
        *_links(verdict),
    ]
    subject = f"[plumbline] {verdict.suite}: {trouble.event} on {where}: {text}"
    if trouble.event == "unavailable":
        subject = f"[plumbline] {verdict.suite}: {where} is unavailable"
    about = _about(verdict, result, trouble.platform, trouble.workload)
    return AlertMessage(
        f"{verdict.round}/{trouble.key}/{trouble.event}", trouble.event, about, subject, "\n".join(lines)
    )


def recovery_message(verdict: RoundVerdict, platform: str, workload: str = "") -> AlertMessage:
    """Return the message that a platform, or one workload on it, passes again."""
    result = verdict.platforms[platform]
    where = _place(result, platform, workload)
    subject = f"[plumbline] {verdict.suite}: {where} has recovered"
    body = "\n".join([f"{where} passes in round {verdict.round}", *_links(verdict)])
    about = _about(verdict, result, platform, workload)
    key = f"{platform}/{workload}" if workload else platform
    return AlertMessage(f"{verdict.round}/{key}/recovered", "recovered", about, subject, body)


def _place(result: PlatformResult, platform: str, workload: str) -> str:
    """Return the platform, with the workload if there are several."""
    return f"{platform}, {workload}" if workload and len(result.workloads) > 1 else platform


def _about(verdict: RoundVerdict, result: PlatformResult, platform: str, workload: str) -> str:
    """Return the receiver's incident key, the same for a trouble and its recovery."""
    several = workload and len(result.workloads) > 1
    return f"{verdict.suite}/{platform}/{workload}" if several else f"{verdict.suite}/{platform}"


def _missing(result: PlatformResult, trouble: Trouble) -> list[str]:
    if trouble.event != "unavailable":
        return []
    why = result.absent.get(trouble.workload, "") if trouble.workload else result.unavailable
    lines = [f"no record: {why or result.unavailable}. The platform was not judged in this round."]
    if result.optional:
        lines.append("The platform is optional, but without it too few platforms left a record for a verdict.")
    return lines


def missed_message(suite: str, due: datetime) -> AlertMessage:
    """Return the message about a round that did not run."""
    body = f"The round of {suite} that was due at {due:%Y-%m-%d %H:%M %Z} did not start. No platform was judged."
    subject = f"[plumbline] {suite}: the nightly round did not run"
    return AlertMessage(f"missed/{due.isoformat()}", "missed", f"{suite}/missed", subject, body)


def unchecked_message(suite: str, due: datetime) -> AlertMessage:
    """Return the message that it is unknown whether a due round started."""
    body = f"The round of {suite} that was due at {due:%Y-%m-%d %H:%M %Z} may not have started."
    subject = f"[plumbline] {suite}: cannot tell whether the nightly round ran"
    return AlertMessage(f"unchecked/{due.isoformat()}", "missed", f"{suite}/missed", subject, body)


def no_verdict_message(suite: str, round_id: str, why: str, run: str) -> AlertMessage:
    """Return the message about a round that ended without a verdict."""
    lines = [
        f"Round {round_id} of {suite} started and ended without a verdict. No platform was judged in it.",
        why,
        *([f"run: {run}"] if run else []),
    ]
    subject = f"[plumbline] {suite}: a round ended without a verdict"
    return AlertMessage(f"broken/{round_id}", "missed", f"{suite}/missed", subject, "\n".join(lines))


def probe_message(suite: str, now: datetime) -> tuple[str, str]:
    """Return subject and body of a test message."""
    body = f"This is a test of {suite}'s alerts, sent at {now:%Y-%m-%d %H:%M:%S %Z}. Nothing is wrong."
    return f"[plumbline] {suite}: test of the alerts", body


def _cause_lines(cause: Cause | None) -> list[str]:
    if cause is None:
        return []
    return [f"{cause.code}, {cause.sure}: {cause.why}", *(f"  {line}" for line in cause.evidence[:_MOST_FINDINGS])]


def _worst(result: PlatformResult, trouble: Trouble) -> list[Finding]:
    findings = [
        finding
        for finding in result.findings
        if finding.outcome == trouble.event and finding.workload == trouble.workload
    ]
    return findings[:_MOST_FINDINGS]


def _number(finding: Finding) -> str:
    unit = f" {finding.unit}" if finding.unit else ""
    numbers = "" if finding.observed is None else f": {_value(finding.observed)}{unit}"
    wanted = "expected" if isinstance(finding.limit, str) else "the limit is"
    limit = "" if finding.limit is None else f", {wanted} {_value(finding.limit)}"
    against = f", against {finding.against}" if finding.against else ""
    detail = f": {finding.detail}" if finding.detail else ""
    return f"{finding.check}{numbers}{limit}{against}{detail}"


def _value(value: float | str) -> str:
    """Return a number at full precision, or the start of a digest."""
    return f"{value[:12]}..." if isinstance(value, str) and len(value) == _DIGEST else str(value)


def _links(verdict: RoundVerdict) -> list[str]:
    pairs = (("report", verdict.report), ("note", verdict.report_note), ("run", verdict.flow_run))
    return [f"round: {verdict.round}", *(f"{label}: {value}" for label, value in pairs if value)]
