"""Check of a suite's schedule against the started rounds, with alerts."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from prefect import get_client, task
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from plumbline.alerts import AlertBook, missed
from plumbline.alerts.due import last_due, ran_after, started_at
from plumbline.central import CentralStore
from plumbline.deployment import REGRESSION
from plumbline.errors import ConfigurationError
from plumbline.schema.suite import Schedule, Suite
from plumbline.stores import open_store
from tasks.alert import deliver_pending
from tasks.prefect_client.api import PREFECT_ERRORS
from tasks.prefect_client.notifications import Blocks

__all__ = ["check_missed", "check_missed_rounds", "due_times"]

_BACK = timedelta(days=8)
_MAX_TIMES = 12_000
"""Maximum number of rounds: one every minute for eight days."""


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

    Returns the missed round as text ("" if none), and the failed deliveries.
    """
    now = now or datetime.now(UTC)
    central = CentralStore(open_store(suite.store))
    book = AlertBook(central, suite.name)
    state = book.change(lambda state: state if state.watching else state.replace(watching=now))
    found = ""
    if suite.schedule is not None and _is_paused(suite):
        # No round is due while paused: the watch starts again.
        book.change(lambda state: state.replace(watching=now))
    elif suite.schedule is not None and state.watching is not None:
        times = due_times(suite.schedule, max(now - _BACK, state.watching), _MAX_TIMES, where=suite.name)
        due = last_due(times, now, suite.schedule.grace_seconds, state.watching)
        starts = [started_at(info.key) for info in central.store.list(f"started/{suite.name}/")]
        if due is not None and not ran_after([start for start in starts if start], due):
            book.change(lambda state: missed(state, suite.name, due, suite.alerts, now))
            found = f"the round that was due at {due:%Y-%m-%d %H:%M %Z} did not start"
    return found, deliver_pending(book, Blocks(suite, os.environ))


def _is_paused(suite: Suite) -> bool:
    """Return whether a person has paused the suite's rounds; false if unreachable."""
    if PREFECT_API_URL.value() is None:
        return False
    try:
        with get_client(sync_client=True) as client:
            deployed = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}")
    except (*PREFECT_ERRORS, ObjectNotFound):
        return False
    return deployed.paused or (bool(deployed.schedules) and not any(schedule.active for schedule in deployed.schedules))


@task(name="check missed", persist_result=False)
def check_missed(suite: Suite) -> tuple[str, list[str]]:
    """Run `check_missed_rounds` as a task."""
    return check_missed_rounds(suite)
