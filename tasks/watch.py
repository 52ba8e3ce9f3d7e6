"""Watch of a suite's rounds: resume crashed ones, alert about missed ones."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.utilities.urls import url_for

from plumbline.data.stores import open_store
from plumbline.night.alerts import (
    AlertBook,
    AlertState,
    Planned,
    add_once,
    missed_message,
    no_verdict_message,
    unchecked_message,
    unplanned_message,
    watch_on,
)
from plumbline.night.alerts.state import last_due, ran_after
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import started_at
from plumbline.night.deployment import REGRESSION
from plumbline.report.sentences import clean
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.suite import Schedule, Suite
from plumbline.tasks.alert import deliver_pending, send_directly
from plumbline.tasks.prefect_client.api import (
    open_client,
    read_planned,
    server_clock,
    server_errors,
    server_time,
    wait_for_api,
)
from plumbline.tasks.prefect_client.flow_runs import read_progress
from plumbline.tasks.prefect_client.notifications import Blocks
from plumbline.tasks.prefect_client.recovery import (
    end_by_result,
    name_of_round,
    read_failed_rounds,
    read_open_rounds,
    recover,
    stored_result,
)

_RECENT = timedelta(minutes=20)
"""Two periods of the watch, one of which may start late."""


def check_missed_rounds(suite: Suite, now: datetime | None = None) -> tuple[str, list[str]]:
    """Alert about a missed round once, then send pending alerts. `now` is the server's time.

    Returns the missed round as text ("" if none), and the failures as lines.
    """
    now = now or server_time()
    known = Blocks(suite, os.environ)
    try:
        found, failed = _check(suite, now, known)
    except PlumblineError as error:
        found, failed = _check_without_state(suite, now, known, error)
    return found, [*(str(error) for error in known.errors), *failed]


def _check(suite: Suite, now: datetime, known: Blocks) -> tuple[str, list[str]]:
    central, book = CentralStore(open_store(suite.store)), _book(suite)
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
    """Alert about a missed round although the alert state is unreadable.

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
    """Return the round's runs due since `since`, or the reason."""
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


def recover_rounds(suite: Suite) -> list[str]:
    """Resume or end each crashed round, and alert if lost.

    Returns the failures as lines.
    """
    try:
        wait_for_api(0.0)
        with server_errors(), open_client() as client:
            now = server_clock(client)()
            runs = read_open_rounds(client, suite.name, now)
            progress = read_progress(client, [run.id for run in runs])
            for run in runs:
                recover(client, suite, run, progress.get(run.id), now)
            for run in read_failed_rounds(client, suite.name, now):
                _end_failed(client, suite, run, now)
    except (PlumblineError, OSError) as error:
        return [f"crashed rounds are not continued: {error}"]
    return []


def _end_failed(client: SyncPrefectClient, suite: Suite, run: FlowRun, now: datetime) -> None:
    """Give a failed run its stored result, or add an alert that it has none."""
    name = name_of_round(suite, run)
    if (result := stored_result(suite, name)) is not None:
        end_by_result(client, suite, run, result, now)
    elif run.state is not None and any("missed" in alert.on for alert in suite.alerts):
        why = clean(run.state.message or run.state.name or "")
        message = no_verdict_message(suite.name, name, why, url_for("flow-run", run.id) or "")
        _book(suite).change(lambda state: add_once(state, message, suite.alerts, now))


def _book(suite: Suite) -> AlertBook:
    return AlertBook(CentralStore(open_store(suite.store)), suite.name)
