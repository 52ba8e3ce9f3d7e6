"""Whether the nightly round ran at all: its schedule against the rounds in the central store."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from prefect import task
from prefect.server.schemas.schedules import CronSchedule
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import ValidationError

from plumbline.alerts import AlertBook, missed
from plumbline.alerts.due import last_due, ran_after, start_key, started_at
from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError
from plumbline.rounds import Round
from plumbline.schema.base import first_problem
from plumbline.schema.suite import Schedule, Suite
from plumbline.stores import open_store
from tasks.addresses import Blocks
from tasks.delivering import deliver

__all__ = ["check_missed", "due_times", "mark_start"]

_BACK = timedelta(days=8)
_MOST = 2000


def due_times(schedule: Schedule, start: datetime, count: int, *, where: str = "") -> list[datetime]:
    """The next times from `start` on, as Prefect's own scheduler computes them; `where` is the suite's file or name."""
    try:
        cron = CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValidationError as error:
        key, reason = first_problem(error)
        # Prefect's model names no key where the two do not go together, which is where it knows no such time zone.
        mend = 'five fields, such as "0 2 * * *"' if key else "an IANA name, such as Europe/Berlin"
        raise ConfigurationError(reason, where=where, key=f"schedule.{key or 'timezone'}", mend=mend) from error
    return list(run_coro_as_sync(cron.get_dates(n=count, start=start)) or [])


def mark_start(this: Round) -> None:
    """Leave the mark that this round has started."""
    CentralStore(open_store(this.suite.store)).put_text(start_key(this.suite.name, this.id, datetime.now(UTC)), "")


@task(name="check missed", persist_result=False)
def check_missed(suite: Suite, now: datetime | None = None) -> tuple[str, list[str]]:
    """Tell a missed round once; then send what is pending. What was found, and what could not be delivered."""
    now = now or datetime.now(UTC)
    central = CentralStore(open_store(suite.store))
    book = AlertBook(central, suite.name)
    state = book.change(lambda state: state if state.watching else state.replace(watching=now))
    told = ""
    if suite.schedule is not None and state.watching is not None:
        times = due_times(suite.schedule, now - _BACK, _MOST, where=suite.name)
        due = last_due(times, now, suite.schedule.grace_seconds, state.watching)
        starts = [started_at(info.key) for info in central.store.list(f"started/{suite.name}/")]
        if due is not None and not ran_after([start for start in starts if start], due):
            book.change(lambda state: missed(state, suite.name, due, suite.alerts, now))
            told = f"the round that was due at {due:%Y-%m-%d %H:%M %Z} did not start"
    return told, deliver(book, Blocks(suite, os.environ))
