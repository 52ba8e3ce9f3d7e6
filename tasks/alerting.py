"""The controller's alerting task: what is new is written down, then sent, then marked as delivered."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from prefect import get_run_logger, task
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.core import Block
from prefect.blocks.notifications import AbstractAppriseNotificationBlock, PagerDutyWebHook

from plumbline.alerts import AlertBook, Outgoing, after_failure, after_success, update
from plumbline.central import CentralStore
from plumbline.errors import PlumblineError
from plumbline.rounds import Round
from plumbline.schema.suite import AlertEvent
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.blocks import quiet_apprise
from tasks.observing import PREFECT_ERRORS
from tasks.paging import page

__all__ = ["alert", "deliver", "send"]

Colour = Literal["info", "success", "warning", "failure"]

_COLOURS: dict[AlertEvent | None, Colour] = {
    "drift": "failure",
    "invalid": "failure",
    "missed": "warning",
    "recovered": "success",
    None: "info",
}
_PAUSES = (1.0, 2.0, 4.0, 8.0)


@task(name="alert", persist_result=False)
def alert(this: Round, verdict: RoundVerdict) -> list[str]:
    """Tell who has to be told, once; what could not be delivered, in words. It is tried again in the next round."""
    if not this.suite.alerts:
        return []
    try:
        book = AlertBook(CentralStore(open_store(this.suite.store)), this.suite.name)
        book.change(lambda state: update(state, verdict, this.suite.alerts, datetime.now(UTC)))
        failed = deliver(book)
    except PlumblineError as error:
        # The verdict stands; that nobody was told of it is said beside it.
        failed = [f"the alerts could not be kept: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed


def deliver(book: AlertBook, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Send everything that is pending, each with its own attempts; the failures in words."""
    failed = []
    for one in book.read()[0].pending:
        why = _attempts(one, sleep)
        # Bound to the message: the state may have moved on meanwhile.
        book.change(partial(after_failure, sent=one, why=why) if why else partial(after_success, sent=one))
        if why:
            failed.append(f"the alert {one.subject!r} could not be delivered to {one.block}: {why}")
    return failed


def _attempts(one: Outgoing, sleep: Callable[[float], None]) -> str:
    why = ""
    for pause in (*_PAUSES, 0.0):
        why = send(one.block, one.subject, f"{one.body}\n\nalert {one.id}", event=one.event, about=one.about)
        if not why:
            return ""
        sleep(pause)
    return why


def send(block: str, subject: str, body: str, *, event: AlertEvent | None = None, about: str = "") -> str:
    """Send one message through a Prefect block, as a test where there is no event; why it failed, or nothing."""
    try:
        with quiet_apprise():
            loaded = Block.load(block)
        if not isinstance(loaded, NotificationBlock):
            return f"{block} sends no notifications"
        if isinstance(loaded, PagerDutyWebHook):
            page(loaded, subject, body, event=event, about=about or "test")
            return ""
        if isinstance(loaded, AbstractAppriseNotificationBlock):
            loaded.notify_type = _COLOURS[event]
        with loaded.raise_on_failure():
            _ = loaded.notify(body, subject)
    except (NotificationError, ValueError, *PREFECT_ERRORS) as error:
        # An address may hold a token: none of it goes into a log.
        return re.sub(r"\S+://\S+", "(address)", str(error)).strip() or type(error).__name__
    return ""
