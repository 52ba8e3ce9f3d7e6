"""The controller's alerting task: what is new is written down, then sent, then marked as delivered."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from prefect import get_run_logger, task

from plumbline.alerts import AlertBook, Outgoing, after_failure, after_success, update
from plumbline.central import CentralStore
from plumbline.errors import PlumblineError
from plumbline.rounds import Round
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.addresses import Blocks
from tasks.sending import send

__all__ = ["alert", "deliver"]

_PAUSES = (1.0, 2.0, 4.0, 8.0)


@task(name="alert", persist_result=False)
def alert(this: Round, verdict: RoundVerdict) -> list[str]:
    """Tell who has to be told, once; what could not be delivered, in words. It is tried again in the next round."""
    if not this.suite.alerts:
        return []
    try:
        book = AlertBook(CentralStore(open_store(this.suite.store)), this.suite.name)
        book.change(lambda state: update(state, verdict, this.suite.alerts, datetime.now(UTC)))
        failed = deliver(book, Blocks(this.suite, os.environ))
    except PlumblineError as error:
        # The verdict stands; that nobody was told of it is said beside it.
        failed = [f"the alerts could not be kept: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed


def deliver(book: AlertBook, known: Blocks, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Send everything that is pending, each with its own attempts; the failures in words."""
    failed = []
    for one in book.read()[0].pending:
        why = _attempts(one, known, sleep)
        # Bound to the message: the state may have moved on meanwhile.
        book.change(partial(after_failure, sent=one, why=why) if why else partial(after_success, sent=one))
        if why:
            failed.append(f"the alert {one.subject!r} could not be delivered to {one.block}: {why}")
    return failed


def _attempts(one: Outgoing, known: Blocks, sleep: Callable[[float], None]) -> str:
    why = ""
    for pause in (*_PAUSES, 0.0):
        body = f"{one.body}\n\nalert {one.id}"
        why = send(one.block, one.subject, body, known, event=one.event, about=one.about)
        if not why:
            return ""
        sleep(pause)
    return why
