"""Alert state: one alert per platform, workload and cause until it changes. Pure.

The state is written before an alert is sent, and marked after delivery: an alert may be sent twice, with the same id,
if the sender dies in between, and is never lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import AwareDatetime, ConfigDict

from plumbline.alerts.messages import AlertMessage, missed_message, recovery_message, trouble_message
from plumbline.alerts.troubles import find_troubles, place_of
from plumbline.digest import digest_json
from plumbline.schema.base import Model
from plumbline.schema.suite import Alert, AlertEvent
from plumbline.schema.verdict import PlatformResult, RoundVerdict

__all__ = [
    "AlertState",
    "Open",
    "Outgoing",
    "add_once",
    "after_failure",
    "after_success",
    "claim",
    "missed",
    "update",
    "watch_from",
]

_MOST_PENDING = 500
_SECONDS_PER_HOUR = 3600


class _Shared(Model):
    """Part of a document that controllers and watches of different releases change; each keeps unknown keys."""

    model_config = ConfigDict(extra="allow")


class Open(_Shared):
    """Trouble that was reported and has not recovered."""

    event: AlertEvent
    since_round: str
    since: AwareDatetime
    told: dict[str, AwareDatetime] = {}
    """Time of the last message to each block."""


class Outgoing(_Shared):
    """Message to one alert block, kept until delivery."""

    id: str
    block: str
    event: AlertEvent
    about: str = ""
    """Incident key of the receiver: the same for a trouble and for its recovery."""
    subject: str
    body: str
    created: AwareDatetime
    failures: int = 0
    last_failure: str = ""
    sending_until: AwareDatetime | None = None
    """End of the sender's reservation: a message still pending after that lost its sender."""


class AlertState(_Shared):
    """All open troubles and all undelivered messages of a suite."""

    schema_version: int = 1
    watching: AwareDatetime | None = None
    """Time since which missed rounds are watched for."""
    paused: bool = False
    """Whether the suite's rounds were paused when the Prefect server last answered."""
    open: dict[str, Open] = {}
    """Open troubles by key: platform, workload and cause."""
    pending: tuple[Outgoing, ...] = ()
    rounds: tuple[str, ...] = ()
    """The last processed and missed rounds, so that no round is reported twice."""


def update(state: AlertState, verdict: RoundVerdict, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Apply a round's verdict: new, continuing and recovered troubles. Idempotent."""
    if verdict.round in state.rounds:
        return state
    messages: list[Outgoing] = []
    entries: dict[str, Open] = {}
    troubles = {
        trouble.key: trouble
        for name, result in verdict.platforms.items()
        for trouble in find_troubles(name, result, quorum_failed=verdict.quorum_failed)
    }
    for key, trouble in troubles.items():
        known = state.open.get(key)
        entry = known if known is not None and known.event == trouble.event else Open(
            event=trouble.event, since_round=verdict.round, since=now
        )  # fmt: skip
        message = trouble_message(verdict, trouble, since_round=entry.since_round, since=entry.since)
        entries[key], sent = _remind(entry, message, alerts, now)
        messages += sent
    gone = {key: entry for key, entry in state.open.items() if key not in troubles}
    unclear, recovered = _look_for_recoveries(gone, verdict)
    whole = {name for name, workload in recovered if not workload}
    for name, workload in sorted(place for place in recovered if not place[1] or place[0] not in whole):
        messages += _send(recovery_message(verdict, name, workload), alerts, now)
    return state.replace(
        open={**entries, **unclear},
        pending=(*state.pending, *messages)[-_MOST_PENDING:],
        rounds=(*state.rounds, verdict.round)[-50:],
    )


def _look_for_recoveries(
    gone: Mapping[str, Open], verdict: RoundVerdict
) -> tuple[dict[str, Open], set[tuple[str, str]]]:
    """Return the troubles without evidence tonight, which stay open, and the (platform, workload) that pass again."""
    unclear: dict[str, Open] = {}
    recovered: set[tuple[str, str]] = set()
    for key, known in gone.items():
        name, workload = place_of(key)
        result = verdict.platforms.get(name)
        if known.event == "improved":
            continue  # ends when a new baseline is accepted; this is no recovery
        outcome = result.workloads.get(workload, result.verdict) if result is not None else None
        if outcome == "pass":
            recovered.add((name, workload))
        elif outcome in (None, "inconclusive") and not (known.event == "unavailable" and _is_there(result, workload)):
            # The absence of an optional platform is no trouble tonight: the next failed quorum is alerted at once.
            unclear[key] = known.replace(told={}) if known.event == "unavailable" else known
    return unclear, recovered


def watch_from(state: AlertState, *, paused: bool | None, now: datetime) -> AlertState:
    """Begin to watch for missed rounds, or begin again if they are paused: no round is due then.

    If it is unknown whether they are paused (`None`), the last known answer counts.
    """
    paused = state.paused if paused is None else paused
    return state.replace(paused=paused, watching=now if paused or state.watching is None else state.watching)


def missed(state: AlertState, suite: str, due: datetime, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Add an alert about a missed round, once per due time."""
    return add_once(state, missed_message(suite, due), alerts, now)


def add_once(state: AlertState, alert_message: AlertMessage, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Add an alert without recovery for every subscribed block, unless already added."""
    if any(alert_message.id == known for known in state.rounds):
        return state
    messages = tuple(_send(alert_message, alerts, now))
    return state.replace(
        pending=[known.model_dump() for known in (*state.pending, *messages)],
        rounds=(*state.rounds, alert_message.id)[-50:],
    )


def claim(state: AlertState, wanted: Outgoing, now: datetime, until: datetime) -> AlertState:
    """Reserve a message for this sender; return the same state if it is gone or reserved."""
    changed = [
        message.replace(sending_until=until)
        if _same(message, wanted) and (message.sending_until is None or message.sending_until <= now)
        else message
        for message in state.pending
    ]
    return state.replace(pending=[message.model_dump() for message in changed])


def after_success(state: AlertState, sent: Outgoing) -> AlertState:
    """Remove a delivered message."""
    return state.replace(pending=[message.model_dump() for message in state.pending if not _same(message, sent)])


def after_failure(state: AlertState, sent: Outgoing, why: str) -> AlertState:
    """Record a failed delivery; the message stays pending."""
    changed = [
        message.replace(failures=message.failures + 1, last_failure=why[:500], sending_until=None)
        if _same(message, sent)
        else message
        for message in state.pending
    ]
    return state.replace(pending=[message.model_dump() for message in changed])


def _same(outgoing: Outgoing, other: Outgoing) -> bool:
    return (outgoing.id, outgoing.block) == (other.id, other.block)


def _is_there(result: PlatformResult | None, workload: str) -> bool:
    """Return whether the platform left a record, of the workload or of any."""
    return result is not None and (workload not in result.absent if workload else not result.unavailable)


def _remind(
    entry: Open, alert_message: AlertMessage, alerts: Sequence[Alert], now: datetime
) -> tuple[Open, list[Outgoing]]:
    """Alert every subscribed block that is due for a first message or a reminder."""
    due = [
        alert
        for alert in alerts
        if entry.event in alert.on
        and (
            alert.block not in entry.told
            or (now - entry.told[alert.block]).total_seconds() >= alert.reminder_hours * _SECONDS_PER_HOUR
        )
    ]
    messages = _send(alert_message, due, now)
    return entry.replace(told={**entry.told, **{alert.block: now for alert in due}}), messages


def _send(alert_message: AlertMessage, alerts: Sequence[Alert], now: datetime) -> list[Outgoing]:
    blocks = dict.fromkeys(alert.block for alert in alerts if alert_message.event in alert.on)
    return [
        Outgoing(
            id=digest_json([alert_message.id, block])[:16],
            block=block,
            event=alert_message.event,
            about=alert_message.about,
            subject=alert_message.subject,
            body=alert_message.body,
            created=now,
        )
        for block in blocks
    ]
