"""Check of a suite's schedule against the started rounds, with alerts."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from prefect import get_client, task
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from plumbline.alerts import (
    AlertBook,
    AlertState,
    add_once,
    missed,
    missed_message,
    unchecked_message,
    watch_from,
)
from plumbline.alerts.due import last_due, ran_after, started_at
from plumbline.central import CentralStore
from plumbline.deployment import REGRESSION
from plumbline.errors import ConfigurationError, PlumblineError
from plumbline.schema.suite import Schedule, Suite
from plumbline.stores import open_store
from plumbline.tasks.alert import deliver_pending, send_directly
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.tasks.prefect_client.notifications import Blocks

__all__ = ["check_missed", "check_missed_rounds", "due_times"]

_BACK = timedelta(days=8)
_MAX_TIMES = 12_000
"""Maximum number of rounds: one every minute for eight days."""
_RECENT = timedelta(minutes=20)
"""Two periods of the watch, one of which may start late."""


def due_times(schedule: Schedule, start: datetime, count: int, *, where: str = "") -> list[datetime]:
    """Return the next `count` times after `start`; raise for a wrong cron or zone."""
    try:
        zone = ZoneInfo(schedule.timezone)
    except (ZoneInfoNotFoundError, ValueError) as error:
        hint = "an IANA name, such as Europe/Berlin"
        raise ConfigurationError("unknown time zone", where=where, key="schedule.timezone", hint=hint) from error
    try:
        return list(islice(CronSim(schedule.cron, start.astimezone(zone)), count))
    except CronSimError as error:
        hint = 'five fields, such as "0 2 * * *"'
        raise ConfigurationError(f"invalid cron: {error}", where=where, key="schedule.cron", hint=hint) from error


def check_missed_rounds(suite: Suite, now: datetime | None = None) -> tuple[str, list[str]]:
    """Alert about a missed round once, then send pending alerts.

    Returns the missed round as text ("" if none), and the failures as lines.
    """
    now = now or datetime.now(UTC)
    known = Blocks(suite, os.environ)
    try:
        found, failed = _check(suite, now, known)
    except PlumblineError as error:
        found, failed = _check_without_state(suite, now, known, error)
    return found, [*(str(error) for error in known.errors), *failed]


def _check(suite: Suite, now: datetime, known: Blocks) -> tuple[str, list[str]]:
    central = CentralStore(open_store(suite.store))
    book = AlertBook(central, suite.name)
    paused = None if suite.schedule is None else _is_paused(suite)
    state = book.change(partial(watch_from, paused=paused, now=now))
    found = ""
    if suite.schedule is not None and state.watching is not None:
        due = _last_due(suite, suite.schedule, max(now - _BACK, state.watching), now)
        if due is not None and not _has_started(central, suite, due):
            book.change(lambda state: missed(state, suite.name, due, suite.alerts, now))
            found = _found(due)
    return found, deliver_pending(book, known)


def _check_without_state(suite: Suite, now: datetime, known: Blocks, error: PlumblineError) -> tuple[str, list[str]]:
    """Alert directly about a round whose grace period has just ended: without a state nothing can be remembered.

    The next round repairs an unreadable state.
    """
    remark = f"the alert state cannot be used, so alerts may be repeated: {error}"
    due = None
    if suite.schedule is not None:
        grace = timedelta(seconds=suite.schedule.grace_seconds)
        due = _last_due(suite, suite.schedule, now - grace - _RECENT, now)
    if due is None or _is_paused(suite):
        return "", [remark]
    try:
        has_started = _has_started(CentralStore(open_store(suite.store)), suite, due)
        message = missed_message(suite.name, due)
    except PlumblineError:
        has_started, message = False, unchecked_message(suite.name, due)
    if has_started:
        return "", [remark]
    unstored = add_once(AlertState(), message, suite.alerts, now)
    return _found(due), [remark, *send_directly(unstored, known, remark)]


def _found(due: datetime) -> str:
    return f"the round that was due at {due:%Y-%m-%d %H:%M %Z} did not start"


def _last_due(suite: Suite, schedule: Schedule, since: datetime, now: datetime) -> datetime | None:
    times = due_times(schedule, since, _MAX_TIMES, where=suite.name)
    return last_due(times, now, schedule.grace_seconds, since)


def _has_started(central: CentralStore, suite: Suite, due: datetime) -> bool:
    starts = [started_at(info.key) for info in central.store.list(f"started/{suite.name}/")]
    return ran_after([start for start in starts if start], due)


def _is_paused(suite: Suite) -> bool | None:
    """Return whether a person has paused the suite's rounds; `None` if the server does not answer."""
    if PREFECT_API_URL.value() is None:
        return None
    try:
        with get_client(sync_client=True) as client:
            deployed = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}")
    except ObjectNotFound:
        return False
    except PREFECT_ERRORS:
        return None
    return deployed.paused or (bool(deployed.schedules) and not any(schedule.active for schedule in deployed.schedules))


@task(name="check missed", persist_result=False)
def check_missed(suite: Suite) -> tuple[str, list[str]]:
    """Run `check_missed_rounds` as a task."""
    return check_missed_rounds(suite)
