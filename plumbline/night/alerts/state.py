"""Alert state: one alert per platform problem until its causes change. Pure.

The state is written before an alert is sent, and marked after delivery: an alert may be sent twice, with the same id,
if the sender dies in between, and is never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pydantic import AwareDatetime, ConfigDict

from plumbline.night.alerts.messages import AlertMessage, recovery_message, trouble_message
from plumbline.night.alerts.troubles import Trouble, find_troubles, trouble_of
from plumbline.schema.alert_event import AlertEvent, is_good_news
from plumbline.schema.base import Model
from plumbline.schema.digest import digest_json
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import PlatformResult, RoundVerdict

_MOST_PENDING = 500
_MOST_DUE = 200
_MOST_KNOWN = 2_000
"""More than the minutes of a day, for which the watch reads each failed round again."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=3), timedelta(hours=6)
_MOST_REFUSED, _MOST_LATE = 15, 3
"""Maximum failed deliveries of a message: about two days of refusals, or three times without an answer in time. A
receiver that answers late may have the message."""
_SECONDS_PER_HOUR = 3600
_EARLY = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Planned:
    """Scheduled Prefect flow runs of a suite's round."""

    active: bool = True
    """False while a person has paused the deployment or its schedule."""
    times: tuple[datetime, ...] = ()
    """Expected start times of the runs, past and future, in order; without cancelled runs."""


class _Shared(Model):
    """Document shared by different releases, each of which preserves unknown keys."""

    model_config = ConfigDict(extra="allow")


class Open(_Shared):
    """Reported problem that has not ended yet."""

    event: AlertEvent
    since_round: str
    since: AwareDatetime
    told: dict[str, AwareDatetime] = {}
    """Time of the last message to each block."""


class Outgoing(_Shared):
    """Alert message for one recipient, stored until delivered."""

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
    """End of the sender's reservation, or of the pause after a failure: nobody sends the message before."""


class AlertState(_Shared):
    """All open problems and undelivered messages of a suite."""

    schema_version: int = 1
    due: tuple[AwareDatetime, ...] = ()
    """Start times of Prefect's flow runs, as last seen, whose grace period is not over; empty while paused."""
    unplanned_since: AwareDatetime | None = None
    """Time since which an active schedule has no next flow run."""
    open: dict[str, Open] = {}
    """Open troubles by key: platform, workload and cause."""
    pending: tuple[Outgoing, ...] = ()
    rounds: tuple[str, ...] = ()
    """The last judged rounds by their first verdict, and the last messages that are sent once."""


def update(state: AlertState, verdict: RoundVerdict, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Update the state with a round's new, continuing and ended problems.

    A round that is judged again, because a person retried it, changes the state; a round before the newest does not.
    """
    known_rounds = [name for name in state.rounds if "/" not in name]  # others are messages, sent once
    if verdict.round in known_rounds[:-1]:
        return state
    entries = {
        trouble.key: _entry(state.open.get(trouble.key), trouble, verdict, now)
        for name, result in verdict.platforms.items()
        for trouble in find_troubles(name, result, quorum_failed=verdict.quorum_failed)
    }
    gone = {key: entry for key, entry in state.open.items() if key not in entries}
    new = [trouble_of(key, entry.event) for key, entry in entries.items() if state.open.get(key) != entry]
    unclear, ended = _look_for_ends(gone, new, verdict)
    messages: list[Outgoing] = []
    for keys in _by_platform_and_event(entries):
        messages += _report(verdict, entries, keys, alerts, now)
    still_open = {**entries, **unclear}
    for name in dict.fromkeys(trouble_of(key, entry.event).platform for key, entry in ended.items()):
        others = {key: entry for key, entry in still_open.items() if not is_good_news(entry.event)}
        message = recovery_message(verdict, _begun(ended, name), _begun(others, name))
        messages += _send(message, alerts, now)
    return state.replace(
        open=still_open,
        pending=(*state.pending, *messages)[-_MOST_PENDING:],
        rounds=state.rounds if verdict.round in known_rounds else (*state.rounds, verdict.round)[-_MOST_KNOWN:],
    )


def _entry(known: Open | None, trouble: Trouble, verdict: RoundVerdict, now: datetime) -> Open:
    is_second = trouble.workload in verdict.platforms[trouble.platform].called
    is_same = known is not None and known.event == trouble.event
    if known is not None and is_same and (not is_second or known.since_round == verdict.round):
        return known
    return Open(event=trouble.event, since_round=verdict.round, since=now)


def _by_platform_and_event(entries: Mapping[str, Open]) -> list[list[str]]:
    groups: dict[tuple[str, AlertEvent], list[str]] = {}
    for key, entry in entries.items():
        groups.setdefault((trouble_of(key, entry.event).platform, entry.event), []).append(key)
    return list(groups.values())


def _begun(entries: Mapping[str, Open], platform: str = "") -> list[Trouble]:
    """Return the stored problems with their start times."""
    found = [trouble_of(key, entry.event, entry.since_round, entry.since) for key, entry in entries.items()]
    return [trouble for trouble in found if platform in ("", trouble.platform)]


def _report(
    verdict: RoundVerdict, entries: dict[str, Open], keys: Sequence[str], alerts: Sequence[Alert], now: datetime
) -> list[Outgoing]:
    """Return the alert messages that are due for a platform's problems.

    The message is about the troubles that are new to the block; without one, it is a reminder of all.
    """
    messages = []
    for alert in (one for one in alerts if entries[keys[0]].event in one.on):
        new = [key for key in keys if alert.block not in entries[key].told]
        if not new and not any(_is_due(entries[key].told[alert.block], alert, now) for key in keys):
            continue
        chosen = new or keys
        reported = _begun({key: entries[key] for key in chosen})
        others = _begun({key: entries[key] for key in keys if key not in chosen})
        messages += _send(trouble_message(verdict, reported, others), [alert], now)
        for key in keys:
            entries[key] = entries[key].replace(told={**entries[key].told, alert.block: now})
    return messages


def _is_due(told: datetime, alert: Alert, now: datetime) -> bool:
    return (now - told).total_seconds() >= alert.reminder_hours * _SECONDS_PER_HOUR


def _look_for_ends(
    gone: Mapping[str, Open], new: Sequence[Trouble], verdict: RoundVerdict
) -> tuple[dict[str, Open], dict[str, Open]]:
    """Split open problems into those that continue and those that ended.

    A cause that a new one replaced is in neither: the alert about the new one is enough.
    """
    unclear: dict[str, Open] = {}
    ended: dict[str, Open] = {}
    for key, known in gone.items():
        trouble = trouble_of(key, known.event)
        result = verdict.platforms.get(trouble.platform)
        if is_good_news(known.event):
            continue  # its end, such as a new baseline, is not recovery
        outcome = result.workloads.get(trouble.workload, result.verdict) if result is not None else None
        if outcome == "pass" or (known.event == "unavailable" and _is_there(result, trouble.workload)):
            ended[key] = known
        elif outcome in (None, "inconclusive") or (outcome == "invalid" and known.event == "drift"):
            # The absence of an optional platform is not trouble tonight: the next failed quorum is alerted at once.
            unclear[key] = known.replace(told={}) if known.event == "unavailable" else known
        elif not any(_replaces(other, trouble) for other in new):
            ended[key] = known
    return unclear, ended


def _replaces(new: Trouble, trouble: Trouble) -> bool:
    """Return whether a new problem replaces a reported one. Workload "" means all."""
    is_same = new.platform == trouble.platform and (new.workload == trouble.workload or not trouble.workload)
    return is_same and new.event in ("drift", "invalid")


def watch_on(state: AlertState, planned: Planned | None, grace_seconds: float, now: datetime) -> AlertState:
    """Store due times of rounds not yet started."""
    times = state.due if planned is None else planned.times if planned.active else ()
    since = state.unplanned_since
    if planned is not None:
        is_unplanned = planned.active and not any(time > now for time in times)
        since = (since or now) if is_unplanned else None
    open_times = [time for time in times if time + timedelta(seconds=grace_seconds) > now]
    return state.replace(due=open_times[:_MOST_DUE], unplanned_since=since)


def last_due(times: Iterable[datetime], now: datetime, grace_seconds: float) -> datetime | None:
    """Return the last due time with an expired grace period."""
    return max((time for time in times if time + timedelta(seconds=grace_seconds) <= now), default=None)


def ran_after(starts: Iterable[datetime], due: datetime) -> bool:
    """Return whether a round started since `due`. Schedulers may be 60 s early."""
    return any(start >= due - _EARLY for start in starts)


def add_once(state: AlertState, alert_message: AlertMessage, alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Add a one-time alert for every subscribed recipient, unless already added."""
    if any(alert_message.id == known for known in state.rounds):
        return state
    return state.replace(
        pending=(*state.pending, *_send(alert_message, alerts, now)),
        rounds=(*state.rounds, alert_message.id)[-_MOST_KNOWN:],
    )


def add_all(state: AlertState, messages: Iterable[AlertMessage], alerts: Sequence[Alert], now: datetime) -> AlertState:
    """Add one-time alerts, each unless already added."""
    for message in messages:
        state = add_once(state, message, alerts, now)
    return state


def claim(state: AlertState, wanted: Outgoing, now: datetime, until: datetime) -> AlertState:
    """Reserve a message for this sender; return an unchanged state if impossible."""

    def reserve(message: Outgoing) -> Outgoing:
        is_free = message.sending_until is None or message.sending_until <= now
        return message.replace(sending_until=until) if is_free else message

    return _changed(state, wanted, reserve)


def after_success(state: AlertState, sent: Outgoing) -> AlertState:
    """Remove a delivered message."""
    return _changed(state, sent, lambda _: None)


def after_failure(state: AlertState, sent: Outgoing, why: str, now: datetime, *, is_late: bool) -> AlertState:
    """Record a failed delivery: the message waits, twice as long each time, and is dropped after the last."""

    def fail(message: Outgoing) -> Outgoing | None:
        if is_last_failure(message, is_late=is_late):
            return None
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**message.failures)
        return message.replace(failures=message.failures + 1, last_failure=why[:500], sending_until=now + pause)

    return _changed(state, sent, fail)


def is_last_failure(message: Outgoing, *, is_late: bool) -> bool:
    """Return whether one more failure drops the message. `is_late` is whether the receiver gave no answer in time."""
    return message.failures + 1 >= (_MOST_LATE if is_late else _MOST_REFUSED)


def _changed(state: AlertState, wanted: Outgoing, change: Callable[[Outgoing], Outgoing | None]) -> AlertState:
    """Return the state with one pending message changed or removed."""
    changed = (
        change(message) if (message.id, message.block) == (wanted.id, wanted.block) else message
        for message in state.pending
    )
    return state.replace(pending=[message for message in changed if message is not None])


def _is_there(result: PlatformResult | None, workload: str) -> bool:
    """Return whether the platform produced a record."""
    return result is not None and (workload not in result.absent if workload else not result.unavailable)


def _send(alert_message: AlertMessage, alerts: Sequence[Alert], now: datetime) -> list[Outgoing]:
    blocks = dict.fromkeys(alert.block for alert in alerts if alert_message.event in alert.on)
    return [
        Outgoing(
            # With the incident, which names the suite: two suites may have a round of one name.
            id=digest_json([alert_message.id, alert_message.about, block])[:16],
            block=block,
            event=alert_message.event,
            about=alert_message.about,
            subject=alert_message.subject,
            body=alert_message.body,
            created=now,
        )
        for block in blocks
    ]
