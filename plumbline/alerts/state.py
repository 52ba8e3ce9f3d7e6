"""Alerts, each sent once: one per platform, workload and cause until it changes or recovers. Pure.

The state is written before anything is sent, and marked after it was delivered: an alert may be sent twice if the
sender dies in between, with the same id, and is never lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from pydantic import AwareDatetime

from plumbline.alerts.troubles import find_troubles, place_of
from plumbline.alerts.words import Told, tell_missed, tell_open, tell_recovered
from plumbline.digest import digest_json
from plumbline.schema.base import Model
from plumbline.schema.suite import Alert, AlertEvent
from plumbline.schema.verdict import PlatformResult, RoundVerdict

__all__ = ["AlertState", "Open", "Outgoing", "after_failure", "after_success", "claim", "missed", "told_once", "update"]

_MOST_PENDING = 500


class Open(Model):
    """A trouble that has been told and not recovered."""

    event: AlertEvent
    since_round: str
    since: AwareDatetime
    told: dict[str, AwareDatetime] = {}
    """By block: when it was told last."""


class Outgoing(Model):
    """One message to one block, until it is delivered."""

    id: str
    block: str
    event: AlertEvent
    about: str = ""
    """What opens and what recovers: the same for a trouble and for its end."""
    subject: str
    body: str
    created: AwareDatetime
    failures: int = 0
    last_failure: str = ""
    sending_until: AwareDatetime | None = None
    """Somebody sends it now; if it is still here after that, they have died over it."""


class AlertState(Model):
    """Everything that is open, and everything that has not reached its receiver."""

    schema_version: int = 1
    watching: AwareDatetime | None = None
    """Since when it is watched whether rounds run at all."""
    open: dict[str, Open] = {}
    """By the key of the trouble: platform, workload and cause."""
    pending: tuple[Outgoing, ...] = ()
    rounds: tuple[str, ...] = ()
    """The last rounds taken in, and those that were missed, so that none is told twice."""


def update(state: AlertState, verdict: RoundVerdict, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Take in a round: what is new, what goes on, what has recovered. The same round again changes nothing."""
    if verdict.round in state.rounds:
        return state
    messages: list[Outgoing] = []
    entries: dict[str, Open] = {}
    troubles = {trouble.key: trouble for name, one in verdict.platforms.items() for trouble in find_troubles(name, one)}
    for key, trouble in troubles.items():
        known = state.open.get(key)
        entry = known if known is not None and known.event == trouble.event else Open(
            event=trouble.event, since_round=verdict.round, since=now
        )  # fmt: skip
        told = tell_open(verdict, trouble, since_round=entry.since_round, since=entry.since)
        entries[key], sent = _remind(entry, told, alerts, now)
        messages += sent
    recovered: set[tuple[str, str]] = set()
    for key, known in state.open.items():
        if key in troubles:
            continue
        name, workload = place_of(key)
        result = verdict.platforms.get(name)
        if known.event == "improved":
            continue  # ends when a new baseline is accepted, and nothing has recovered
        outcome = result.workloads.get(workload, result.verdict) if result is not None else None
        if outcome == "pass":
            recovered.add((name, workload))
        elif outcome in (None, "inconclusive") and not (known.event == "unavailable" and _is_there(result, workload)):
            entries[key] = known  # nothing is known of it tonight
    whole = {name for name, workload in recovered if not workload}
    for name, workload in sorted(one for one in recovered if not one[1] or one[0] not in whole):
        messages += _send(tell_recovered(verdict, name, workload), alerts, now)
    return AlertState(
        watching=state.watching,
        open=entries,
        pending=(*state.pending, *messages)[-_MOST_PENDING:],
        rounds=(*state.rounds, verdict.round)[-50:],
    )


def missed(state: AlertState, suite: str, due: datetime, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """The round that was due did not run. Told once for each time it was due."""
    return told_once(state, tell_missed(suite, due), alerts, now)


def told_once(state: AlertState, told: Told, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """What happens once and has no end: told to every block that wants it, unless it has been."""
    if any(told.id == one for one in state.rounds):
        return state
    messages = tuple(_send(told, alerts, now))
    return state.replace(
        pending=[one.model_dump() for one in (*state.pending, *messages)], rounds=(*state.rounds, told.id)[-50:]
    )


def claim(state: AlertState, wanted: Outgoing, now: datetime, until: datetime) -> AlertState:
    """Take a message to be sent, so that nobody else sends it too; the same state if it is gone or taken."""
    changed = [
        one.replace(sending_until=until)
        if _same(one, wanted) and (one.sending_until is None or one.sending_until <= now)
        else one
        for one in state.pending
    ]
    return state.replace(pending=[one.model_dump() for one in changed])


def after_success(state: AlertState, sent: Outgoing) -> AlertState:
    """The message has reached its receiver."""
    return state.replace(pending=[one.model_dump() for one in state.pending if not _same(one, sent)])


def after_failure(state: AlertState, sent: Outgoing, why: str) -> AlertState:
    """The message has not reached its receiver; it stays pending."""
    changed = [
        one.replace(failures=one.failures + 1, last_failure=why[:500], sending_until=None) if _same(one, sent) else one
        for one in state.pending
    ]
    return state.replace(pending=[one.model_dump() for one in changed])


def _same(one: Outgoing, other: Outgoing) -> bool:
    return (one.id, one.block) == (other.id, other.block)


def _is_there(result: PlatformResult | None, workload: str) -> bool:
    """Return whether the platform left a record, of the workload or of any."""
    return result is not None and (workload not in result.absent if workload else not result.unavailable)


def _remind(entry: Open, told: Told, alerts: Sequence[Alert], now: datetime) -> tuple[Open, list[Outgoing]]:
    """Tell every block that wants it and has not been told, or not for as long as its reminder says."""
    due = [
        alert
        for alert in alerts
        if entry.event in alert.on
        and (alert.block not in entry.told or now - entry.told[alert.block] >= timedelta(hours=alert.reminder_hours))
    ]
    messages = _send(told, due, now)
    return entry.replace(told={**entry.told, **{alert.block: now for alert in due}}), messages


def _send(told: Told, alerts: Sequence[Alert], now: datetime) -> list[Outgoing]:
    blocks = dict.fromkeys(alert.block for alert in alerts if told.event in alert.on)
    return [
        Outgoing(
            id=digest_json([told.id, block])[:16],
            block=block,
            event=told.event,
            about=told.about,
            subject=told.subject,
            body=told.body,
            created=now,
        )
        for block in blocks
    ]
