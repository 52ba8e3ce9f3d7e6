"""Alerts about a round: stored in the central store first, then sent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from prefect import get_run_logger, task
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.alerts import (
    AlertBook,
    AlertMessage,
    AlertState,
    Outgoing,
    add_once,
    after_failure,
    after_success,
    claim,
    no_verdict_message,
    update,
)
from plumbline.central import CentralStore
from plumbline.errors import PlumblineError, SupersededError
from plumbline.rounds import Round
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.open_round import refuse_superseded
from tasks.prefect_client.api import PREFECT_ERRORS
from tasks.prefect_client.notifications import Blocks, send

__all__ = ["alert_about_verdict", "alert_once", "alert_without_verdict", "deliver_pending"]

_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
_LEASE = timedelta(minutes=5)


@task(name="alert", persist_result=False)
def alert_about_verdict(round_: Round, verdict: RoundVerdict) -> list[str]:
    """Alert each recipient once; return failed deliveries, which are retried later."""
    alerts = round_.suite.alerts
    if not alerts:
        return []

    def add(state: AlertState) -> AlertState:
        refuse_superseded(round_.suite, round_.id)
        return update(state, verdict, alerts, datetime.now(UTC))

    try:
        failed = _alert(round_.suite, add)
    except SupersededError:
        raise
    except PlumblineError as error:
        # The verdict is valid; a note reports the failed alerts.
        failed = [f"the alerts could not be stored: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed


@task(name="alert once", persist_result=False)
def alert_once(suite: Suite, messages: Sequence[AlertMessage]) -> list[str]:
    """Send each message once to its recipients; return failed deliveries as lines."""
    if not suite.alerts or not messages:
        return []

    def add(state: AlertState) -> AlertState:
        for message in messages:
            state = add_once(state, message, suite.alerts, datetime.now(UTC))
        return state

    try:
        failed = _alert(suite, add)
    except PlumblineError as error:
        failed = [f"the alerts could not be stored: {error}"]
    for line in failed:
        get_run_logger().error(line)
    return failed


@contextmanager
def alert_without_verdict(suite: Suite, round_id: str) -> Iterator[None]:
    """Alert that the round failed without a verdict, then re-raise the error.

    Handles Plumbline's errors only; any other exception ends the run as Failed, and Prefect's automation alerts.
    """
    try:
        yield
    except SupersededError:
        raise  # the later start ends the round
    except PlumblineError as error:
        _refuse_if_known(suite, round_id)
        message = no_verdict_message(suite.name, round_id, str(error), url_for("flow-run", flow_run.id) or "")
        for line in _alert_without_store(suite, message):
            get_run_logger().error(line)
        raise


def _refuse_if_known(suite: Suite, round_id: str) -> None:
    """Raise `SupersededError` if a later start is known to continue the round: an outage prevents no alert."""
    try:
        refuse_superseded(suite, round_id)
    except SupersededError:
        raise
    except (PlumblineError, ObjectNotFound, *PREFECT_ERRORS):
        return


def _alert(suite: Suite, change: Callable[[AlertState], AlertState]) -> list[str]:
    book = AlertBook(CentralStore(open_store(suite.store)), suite.name)
    book.change(change)
    return deliver_pending(book, Blocks(suite, os.environ))


def _alert_without_store(suite: Suite, message: AlertMessage) -> list[str]:
    """Send through the stored state, or directly if the central store fails."""
    blocks = dict.fromkeys(alert.block for alert in suite.alerts if message.event in alert.on)
    if not blocks:
        return []
    try:
        return _alert(suite, lambda state: add_once(state, message, suite.alerts, datetime.now(UTC)))
    except PlumblineError:
        known = Blocks(suite, os.environ)
        sent = {
            block: send(block, message.subject, message.body, known, event=message.event, about=message.about)
            for block in blocks
        }
        return [_undelivered(message.subject, block, why) for block, why in sent.items() if why]


def deliver_pending(book: AlertBook, known: Blocks, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Send every pending message; return the failed deliveries as lines.

    A round, the watch and `alert --check` may run at the same time: each message is sent by one of them.
    """
    failed = []
    for message in book.read()[0].pending:
        if not _is_claimed(book, message):
            continue
        why = _attempt(message, known, sleep)
        # Applies to this message only, as the state may have changed meanwhile.
        book.change(partial(after_failure, sent=message, why=why) if why else partial(after_success, sent=message))
        if why:
            failed.append(_undelivered(message.subject, message.block, why))
    return failed


def _undelivered(subject: str, block: str, why: str) -> str:
    return f"the alert {subject!r} could not be delivered to {block}: {why}"


def _is_claimed(book: AlertBook, message: Outgoing) -> bool:
    now = datetime.now(UTC)
    is_ours = False

    def take(state: AlertState) -> AlertState:
        nonlocal is_ours
        changed = claim(state, message, now, now + _LEASE)
        is_ours = changed != state
        return changed

    book.change(take)
    return is_ours


def _attempt(message: Outgoing, known: Blocks, sleep: Callable[[float], None]) -> str:
    why = ""
    for pause in (*_PAUSES_SECONDS, 0.0):
        body = f"{message.body}\n\nalert {message.id}"
        why = send(message.block, message.subject, body, known, event=message.event, about=message.about)
        if not why:
            return ""
        sleep(pause)
    return why
