"""Check of the rounds that Prefect has scheduled against the started ones, with alerts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from prefect import task

from plumbline.alerts import (
    AlertBook,
    AlertState,
    Planned,
    add_once,
    missed_message,
    unchecked_message,
    unplanned_message,
    watch_on,
)
from plumbline.alerts.state import last_due, ran_after
from plumbline.central import CentralStore
from plumbline.central.central_store import started_at
from plumbline.deployment import REGRESSION
from plumbline.errors import ConfigurationError, PlumblineError
from plumbline.schema.suite import Schedule, Suite
from plumbline.stores import open_store
from plumbline.tasks.alert import deliver_pending, send_directly
from plumbline.tasks.prefect_client.api import open_client, read_planned, server_errors, wait_for_api
from plumbline.tasks.prefect_client.notifications import Blocks

_RECENT = timedelta(minutes=20)
"""Two periods of the watch, one of which may start late."""


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
    if suite.schedule is None:
        return "", deliver_pending(book, known)
    state, schedule = book.read(), suite.schedule
    planned, why = _read_planned(suite, since=min([*state.due, now]))
    due = _last_due(planned.times if planned else state.due, schedule, now)
    is_missed = due is not None and (planned is None or planned.active) and not _has_started(central, suite, due)

    def change(state: AlertState) -> AlertState:
        if is_missed and due is not None:
            state = add_once(state, missed_message(suite.name, due), suite.alerts, now)
        state = watch_on(state, planned, schedule.grace_seconds, now)
        since = state.unplanned_since
        if since is not None and (now - since).total_seconds() >= schedule.grace_seconds:
            message = unplanned_message(suite.name, since.astimezone(ZoneInfo(schedule.timezone)))
            state = add_once(state, message, suite.alerts, now)
        return state

    state = book.change(change)
    blind = [why] if planned is None and not state.due and not is_missed else []
    return _found(due) if is_missed and due is not None else "", [*blind, *deliver_pending(book, known)]


def _check_without_state(suite: Suite, now: datetime, known: Blocks, error: PlumblineError) -> tuple[str, list[str]]:
    """Alert directly about a round whose grace period has just ended: without a state nothing can be remembered.

    The next round repairs an unreadable state.
    """
    remark = f"the alert state cannot be used, so alerts may be repeated: {error}"
    if suite.schedule is None:
        return "", [remark]
    grace = timedelta(seconds=suite.schedule.grace_seconds)
    planned, why = _read_planned(suite, since=now - grace - _RECENT)
    if planned is None:
        return "", [remark, why]
    due = _last_due(planned.times, suite.schedule, now)
    if due is None or not planned.active:
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


def _last_due(times: Iterable[datetime], schedule: Schedule, now: datetime) -> datetime | None:
    due = last_due(times, now, schedule.grace_seconds)
    return due.astimezone(ZoneInfo(schedule.timezone)) if due is not None else None


def _has_started(central: CentralStore, suite: Suite, due: datetime) -> bool:
    starts = [started_at(info.key) for info in central.store.list(f"started/{suite.name}/")]
    return ran_after([start for start in starts if start], due)


def _read_planned(suite: Suite, since: datetime) -> tuple[Planned | None, str]:
    """Return Prefect's flow runs of the round since `since`; `None` and the reason if they cannot be read."""
    name = f"{REGRESSION}/{suite.name}"
    try:
        wait_for_api(0.0)
        with server_errors(), open_client() as client:
            planned = read_planned(client, name, since)
        if planned is None:
            raise ConfigurationError("is not deployed", where=name, hint="run `plumbline deploy SUITE`")
    except (PlumblineError, OSError) as error:
        return None, f"the due rounds are unknown: {error}"
    return planned, ""


@task(name="check missed", persist_result=False)
def check_missed(suite: Suite) -> tuple[str, list[str]]:
    """Run `check_missed_rounds` as a task."""
    return check_missed_rounds(suite)
