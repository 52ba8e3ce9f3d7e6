"""Alert texts: platform, causes, certainty, numbers, start and links. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from plumbline.night.alerts.troubles import Trouble
from plumbline.report.sentences import listed, number, sentence_of
from plumbline.schema.alert_event import EVENTS, AlertEvent
from plumbline.schema.digest import digest_json
from plumbline.schema.escape import one_line
from plumbline.schema.fact import Fact, Statement
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict

_MOST_FINDINGS = 3
_DIGEST = 64


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """Alert message. Repeated reports of one event have the same id."""

    id: str
    event: AlertEvent
    about: str
    """Incident key: the suite and the platform, or `SUITE/missed`. A recovery of the key ends the incident."""
    subject: str
    body: str


def trouble_message(verdict: RoundVerdict, reported: Sequence[Trouble], others: Sequence[Trouble] = ()) -> AlertMessage:
    """Return the message about a platform's new problems, mentioning `others`."""
    platform, event = reported[0].platform, reported[0].event
    result = verdict.platforms[platform]
    place, texts = _place_and_texts(result, reported)
    subject = f"[plumbline] {verdict.suite}: {event} on {place}: {', '.join(texts)}"
    if event == "unavailable":
        subject = f"[plumbline] {verdict.suite}: {', '.join((platform, *_workloads(result, reported)))} is unavailable"
    lines = [
        *(line for trouble in reported for line in _cause_lines(result, trouble)),
        *_missing(result, reported),
        *(_number(finding) for finding in _worst(result, reported)),
        *_since_lines(verdict, reported),
        *(_continuing(result, trouble) for trouble in others),
        *_links(verdict),
    ]
    name = digest_json([[trouble.key, trouble.since.isoformat()] for trouble in reported])[:12]
    return AlertMessage(
        f"{verdict.round}/{platform}/{event}/{name}", event, f"{verdict.suite}/{platform}", subject, _body(lines)
    )


def recovery_message(verdict: RoundVerdict, ended: Sequence[Trouble], others: Sequence[Trouble] = ()) -> AlertMessage:
    """Return the message that a platform's problems ended; `others` continue.

    While others continue, `about` names the ended troubles: the platform's incident stays open.
    """
    platform = ended[0].platform
    result = verdict.platforms[platform]
    place, _ = _place_and_texts(result, ended)
    names = [trouble.what for trouble in ended]
    if all(result.workloads.get(trouble.workload, result.verdict) == "pass" for trouble in ended):
        text, first = f"{place} has recovered", f"{place} passes in round {verdict.round}"
    elif all(trouble.event == "unavailable" for trouble in ended):
        text, first = f"{place} is available again", f"{place} left a record in round {verdict.round}"
    else:
        text, first = f"recovered on {place}: {', '.join(names)}", f"ended in round {verdict.round}: {listed(names)}"
    lines = [first, *(_continuing(result, trouble) for trouble in others), *_links(verdict)]
    keys = sorted(trouble.key.partition("/")[2] for trouble in ended)
    about = "/".join((verdict.suite, platform, *(keys if others else ())))
    name = digest_json([[trouble.key, trouble.since.isoformat()] for trouble in ended])[:12]
    subject = f"[plumbline] {verdict.suite}: {text}"
    return AlertMessage(f"{verdict.round}/{platform}/recovered/{name}", "recovered", about, subject, _body(lines))


def _body(lines: Sequence[str]) -> str:
    """Join lines, with untrusted text never starting a line."""
    return "\n".join(map(one_line, lines))


def _place_and_texts(result: PlatformResult, troubles: Sequence[Trouble]) -> tuple[str, list[str]]:
    """Return the platform, with any common workload, and each problem's text."""
    platform = troubles[0].platform
    workloads = list(dict.fromkeys(trouble.workload for trouble in troubles))
    texts = [_text(result, trouble) for trouble in troubles]
    if len(result.workloads) <= 1 or not any(workloads):
        return platform, texts
    if len(workloads) == 1:
        return f"{platform}, {workloads[0]}", texts
    named = zip(troubles, texts, strict=True)
    return platform, [f"{trouble.workload}: {text}" if trouble.workload else text for trouble, text in named]


def _text(result: PlatformResult, trouble: Trouble) -> str:
    raised_by = EVENTS[trouble.event].raised_by
    detail = trouble.what.removeprefix(trouble.event).removeprefix("-")
    if raised_by and (raised := raised_by(result).get(detail)):
        return sentence_of(raised)
    cause = _cause(result, trouble)
    return f"{cause.code} ({cause.sure})" if cause else trouble.what


def _cause(result: PlatformResult, trouble: Trouble) -> Cause | None:
    causes = (one for one in result.causes if (one.code, one.workload) == (trouble.what, trouble.workload))
    return next(causes, None)


def _since_lines(verdict: RoundVerdict, reported: Sequence[Trouble]) -> Iterator[str]:
    """Yield lines that say when the problems began."""
    begins = dict.fromkeys((trouble.since_round, trouble.since) for trouble in reported)
    for since_round, since in begins:
        when = "new in this round" if since_round == verdict.round else f"since {_when(since)}, round {since_round}"
        names = [one.what for one in reported if (one.since_round, one.since) == (since_round, since)]
        yield when if len(begins) == 1 else f"{when}: {listed(names)}"


def _continuing(result: PlatformResult, trouble: Trouble) -> str:
    place, _ = _place_and_texts(result, [trouble])
    return f"still open on {place}: {trouble.what}, since {_when(trouble.since)}, round {trouble.since_round}"


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M %Z}"


def _workloads(result: PlatformResult, reported: Sequence[Trouble]) -> list[str]:
    """Return the problems' workloads, if the platform has several."""
    names = dict.fromkeys(trouble.workload for trouble in reported if trouble.workload)
    return list(names) if len(result.workloads) > 1 else []


def _missing(result: PlatformResult, reported: Sequence[Trouble]) -> list[str]:
    if reported[0].event != "unavailable":
        return []
    lines = []
    for trouble in reported:
        why = result.absent.get(trouble.workload, "") if trouble.workload else result.unavailable
        name = f" of {trouble.workload}" if len(reported) > 1 else ""
        lines.append(f"no record{name}: {why or result.unavailable}. The platform was not judged in this round.")
    if result.optional:
        lines.append("The platform is optional, but without it too few platforms left a record for a verdict.")
    return lines


def missed_message(suite: str, due: datetime) -> AlertMessage:
    """Return the message about a round that did not run."""
    body = f"The round of {suite} that was due at {due:%Y-%m-%d %H:%M %Z} did not start. No platform was judged."
    subject = f"[plumbline] {suite}: the nightly round did not run"
    return AlertMessage(f"missed/{due.isoformat()}", "missed", f"{suite}/missed", subject, body)


def unchecked_message(suite: str, due: datetime) -> AlertMessage:
    """Return the message that a due round's start could not be checked."""
    body = f"The round of {suite} that was due at {due:%Y-%m-%d %H:%M %Z} may not have started."
    subject = f"[plumbline] {suite}: cannot tell whether the nightly round ran"
    return AlertMessage(f"unchecked/{due.isoformat()}", "missed", f"{suite}/missed", subject, body)


def unplanned_message(suite: str, since: datetime) -> AlertMessage:
    """Return the message that the scheduler has no next round planned."""
    body = (
        f"The schedule of {suite} is active, but Prefect has planned no next round since {since:%Y-%m-%d %H:%M %Z}."
        " Check that the scheduler of Prefect's server runs, and that schedule.cron fires within 100 days."
    )
    subject = f"[plumbline] {suite}: no next round is planned"
    return AlertMessage(f"unplanned/{since.isoformat()}", "missed", f"{suite}/missed", subject, body)


def left_on_message(suite: str, group: str, count: int, now: datetime) -> AlertMessage:
    """Return the message about machines that run without a round."""
    body = f"{group} is set to {count}, and no round of {suite} runs: set it to 0, or its machines cost money all day."
    subject = f"[plumbline] {suite}: machines are left on"
    return AlertMessage(f"left-on/{now:%Y-%m-%d}/{group}", "left-on", f"{suite}/left-on", subject, body)


def no_verdict_message(suite: str, round_id: str, why: str, run: str) -> AlertMessage:
    """Return the message about a round that ended without a verdict."""
    lines = [
        f"Round {round_id} of {suite} started and ended without a verdict. No platform was judged in it.",
        why,
        *([f"run: {run}"] if run else []),
    ]
    subject = f"[plumbline] {suite}: a round ended without a verdict"
    name = f"broken/{round_id}/{digest_json(why)[:12]}"
    return AlertMessage(name, "missed", f"{suite}/missed", subject, _body(lines))


def probe_message(suite: str, now: datetime) -> tuple[str, str]:
    """Return subject and body of a test alert."""
    body = f"This is a test of {suite}'s alerts, sent at {now:%Y-%m-%d %H:%M:%S %Z}. Nothing is wrong."
    return f"[plumbline] {suite}: test of the alerts", body


def _cause_lines(result: PlatformResult, trouble: Trouble) -> list[str]:
    cause = _cause(result, trouble)
    if cause is None:
        return []
    return [
        f"{cause.code}, {cause.sure}: {sentence_of(cause.why)}",
        *(f"  {sentence_of(_without_text(line))}" for line in cause.evidence[:_MOST_FINDINGS]),
    ]


def _without_text(statement: Statement) -> Statement:
    """Remove a data row's text, as alerts may leave the team."""
    if isinstance(statement, Fact) and statement.code == "data.row":
        return statement.replace(values={**statement.values, "text": ""})
    return statement


def _worst(result: PlatformResult, reported: Sequence[Trouble]) -> list[Finding]:
    wanted = {(trouble.event, trouble.workload) for trouble in reported}
    findings = [finding for finding in result.findings if (finding.outcome, finding.workload) in wanted]
    return findings[:_MOST_FINDINGS]


def _number(finding: Finding) -> str:
    unit = f" {finding.unit}" if finding.unit else ""
    numbers = "" if finding.observed is None else f": {_value(finding.observed)}{unit}"
    wanted = "expected" if isinstance(finding.limit, str) else "the limit is"
    limit = "" if finding.limit is None else f", {wanted} {_value(finding.limit)}"
    against = f", against {finding.against}" if finding.against else ""
    detail = f": {sentence_of(finding.detail)}" if finding.detail else ""
    return f"{finding.check}{numbers}{limit}{against}{detail}"


def _value(value: float | str) -> str:
    """Format a rounded number, or the start of a digest."""
    if isinstance(value, str):
        return f"{value[:12]}..." if len(value) == _DIGEST else value
    return number(value)


def _links(verdict: RoundVerdict) -> list[str]:
    pairs = (("report", verdict.report), ("note", verdict.report_note), ("run", verdict.flow_run))
    return [f"round: {verdict.round}", *(f"{label}: {value}" for label, value in pairs if value)]
