"""The controller's alerting: what is new is written down first, then sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from prefect import get_run_logger, task
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.alerts import AlertBook, AlertState, Told, tell_broken, told_once, update
from plumbline.central import CentralStore
from plumbline.errors import PlumblineError
from plumbline.rounds import Round
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.addresses import Blocks
from tasks.delivering import deliver, undelivered
from tasks.sending import send

__all__ = ["alert", "told_if_broken"]


@task(name="alert", persist_result=False)
def alert(this: Round, verdict: RoundVerdict) -> list[str]:
    """Tell who has to be told, once; what could not be delivered, in words. It is tried again in the next round."""
    alerts = this.suite.alerts
    if not alerts:
        return []
    try:
        failed = _tell(this.suite, lambda state: update(state, verdict, alerts, datetime.now(UTC)))
    except PlumblineError as error:
        # The verdict stands; that nobody was told of it is said beside it.
        failed = [f"the alerts could not be kept: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed


@contextmanager
def told_if_broken(suite: Suite, round_id: str) -> Iterator[None]:
    """Who waits for the round is told that it comes to no verdict, and why; the error goes its way."""
    try:
        yield
    except Exception as error:
        # What is not ours may hold an address, and with it a token.
        why = str(error) if isinstance(error, PlumblineError) else f"{type(error).__name__}: its log says where"
        told = tell_broken(suite.name, round_id, why, url_for("flow-run", flow_run.id) or "")
        for line in _tell_at_all_costs(suite, told):
            get_run_logger().error(line)
        raise


def _tell(suite: Suite, change: Callable[[AlertState], AlertState]) -> list[str]:
    book = AlertBook(CentralStore(open_store(suite.store)), suite.name)
    book.change(change)
    return deliver(book, Blocks(suite, os.environ))


def _tell_at_all_costs(suite: Suite, told: Told) -> list[str]:
    """Through the book, which sends once and tries again; past it where the central store itself is the trouble."""
    blocks = dict.fromkeys(one.block for one in suite.alerts if told.event in one.on)
    if not blocks:
        return []
    try:
        return _tell(suite, lambda state: told_once(state, told, suite.alerts, datetime.now(UTC)))
    except PlumblineError:
        known = Blocks(suite, os.environ)
        sent = {
            block: send(block, told.subject, told.body, known, event=told.event, about=told.about) for block in blocks
        }
        return [undelivered(told.subject, block, why) for block, why in sent.items() if why]
