"""The controller's alerting: what is new is written down first, then sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from prefect import get_run_logger, task
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.alerts import AlertBook, AlertState, tell_broken, told_once, update
from plumbline.central import CentralStore
from plumbline.errors import PlumblineError
from plumbline.rounds import Round
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.addresses import Blocks
from tasks.delivering import deliver

__all__ = ["alert", "told_if_broken"]


@task(name="alert", persist_result=False)
def alert(this: Round, verdict: RoundVerdict) -> list[str]:
    """Tell who has to be told, once; what could not be delivered, in words. It is tried again in the next round."""
    return _tell(this, lambda state: update(state, verdict, this.suite.alerts, datetime.now(UTC)))


@contextmanager
def told_if_broken(this: Round) -> Iterator[None]:
    """Who waits for the round is told that it comes to no verdict, and why; the error goes its way."""
    try:
        yield
    except Exception as error:
        # What is not ours may hold an address, and with it a token.
        why = str(error) if isinstance(error, PlumblineError) else f"{type(error).__name__}: its log says where"
        run = url_for("flow-run", flow_run.id) or ""
        now, told = datetime.now(UTC), tell_broken(this.suite.name, this.id, why, run)
        _tell(this, lambda state: told_once(state, told, this.suite.alerts, now))
        raise


def _tell(this: Round, change: Callable[[AlertState], AlertState]) -> list[str]:
    if not this.suite.alerts:
        return []
    try:
        book = AlertBook(CentralStore(open_store(this.suite.store)), this.suite.name)
        book.change(change)
        failed = deliver(book, Blocks(this.suite, os.environ))
    except PlumblineError as error:
        # The verdict stands; that nobody was told of it is said beside it.
        failed = [f"the alerts could not be kept: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed
