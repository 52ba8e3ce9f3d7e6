"""Alerts about a round: stored in the central store first, then sent.

If the stored state cannot be used, alerts are sent without it: a repeated alert is better than none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Lock
from typing import NamedTuple

from prefect import get_run_logger
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.data.stores import open_store
from plumbline.night.alerts import (
    AlertBook,
    AlertMessage,
    AlertState,
    Outgoing,
    add_all,
    add_once,
    after_failure,
    after_success,
    claim,
    is_last_failure,
    no_verdict_message,
    update,
)
from plumbline.night.central import CentralStore
from plumbline.night.rounds import Round
from plumbline.schema.errors import PlumblineError, SupersededError
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.open_round import refuse_superseded
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.tasks.prefect_client.notifications import Blocks, send
from plumbline.tasks.prefect_client.recovery import stored_result
from plumbline.tasks.round_task import round_task

_PAUSES_SECONDS = (1.0, 2.0, 4.0, 8.0)
_LATE_SECONDS = 1.0
"""Seconds after which a failed try is late: the receiver may have the message, and is not tried again at once."""
_DELIVERY_SECONDS = 20.0
"""Maximum seconds until the last try of a round's alerts; what is not delivered is sent later."""
_LEASE = timedelta(minutes=5)


@round_task("alert")
def alert_about_verdict(round_: Round, verdict: RoundVerdict) -> list[str]:
    """Alert each recipient once; return failures as lines. Failed deliveries are retried later."""
    alerts = round_.suite.alerts
    if not alerts:
        return []

    def add(state: AlertState) -> AlertState:
        _refuse_if_known(round_.suite, round_.id)
        return update(state, verdict, alerts, datetime.now(UTC))

    return _alert(round_.suite, add)


@round_task("alert once")
def alert_once(suite: Suite, messages: Sequence[AlertMessage]) -> list[str]:
    """Send each message once to its recipients; return failures as lines."""
    if not suite.alerts or not messages:
        return []
    return _alert(suite, partial(add_all, messages=messages, alerts=suite.alerts, now=datetime.now(UTC)))


@contextmanager
def alert_without_verdict(suite: Suite, round_id: str) -> Iterator[None]:
    """Alert that the round failed without a verdict, then re-raise the error.

    A round that a person retries after its verdict has one: its failure is no alert. Handles Plumbline's errors only:
    any other exception ends the run as Failed, and the watch alerts.
    """
    try:
        yield
    except SupersededError:
        raise  # the later start ends the round
    except PlumblineError as error:
        _refuse_if_known(suite, round_id)
        message = no_verdict_message(suite.name, round_id, str(error), url_for("flow-run", flow_run.id) or "")
        if any(message.event in alert.on for alert in suite.alerts) and not _is_judged(suite, round_id):
            _alert(suite, lambda state: add_once(state, message, suite.alerts, datetime.now(UTC)))
        raise


def _refuse_if_known(suite: Suite, round_id: str) -> None:
    """Raise `SupersededError` if a later run continues the round; ignore outages."""
    try:
        refuse_superseded(suite, round_id)
    except SupersededError:
        raise
    except (PlumblineError, ObjectNotFound, *PREFECT_ERRORS):
        return


def _is_judged(suite: Suite, round_id: str) -> bool:
    """Return whether the verdict or upgrade outcome is already stored."""
    try:
        return stored_result(suite, round_id) is not None
    except PlumblineError:
        return False


def _alert(suite: Suite, change: Callable[[AlertState], AlertState]) -> list[str]:
    """Store new messages, send all pending; return failures as lines.

    An unreadable state is reset. If the state cannot be used at all, the messages that an empty one leads to are sent.
    """
    known = Blocks(suite, os.environ)
    try:
        book = AlertBook(CentralStore(open_store(suite.store)), suite.name)
        remark = book.repair()
        book.change(change)
        failed = deliver_pending(book, known, remark=remark)
    except SupersededError:
        raise
    except PlumblineError as error:
        remark = f"the alert state cannot be used, so alerts may be repeated: {error}"
        failed = send_directly(change(AlertState()), known, remark)
    failed = [*(str(error) for error in known.errors), *([remark] if remark else []), *failed]
    for line in failed:
        get_run_logger().error(line)
    return failed


def send_directly(state: AlertState, known: Blocks, remark: str) -> list[str]:
    """Send pending messages without stored state; return failed deliveries as lines."""
    failed: list[str] = []

    def note(message: Outgoing, failure: _Failure | None) -> None:
        if failure is not None:
            failed.append(_undelivered(message, failure.why))

    _deliver(state.pending, known, time.sleep, remark, note)
    return failed


def deliver_pending(
    book: AlertBook, known: Blocks, sleep: Callable[[float], None] = time.sleep, *, remark: str = ""
) -> list[str]:
    """Send every pending message with `remark`; return failed deliveries as lines.

    A round, the watch and `doctor --missed` may run at the same time: each message is sent by one of them.
    """
    failed: list[str] = []

    def note(message: Outgoing, failure: _Failure | None) -> None:
        # Applies to this message only, as the state may have changed meanwhile.
        if failure is None:
            book.change(partial(after_success, sent=message))
            return
        failed.append(_undelivered(message, failure.why))
        if failure.seconds is not None:
            is_late = failure.seconds > _LATE_SECONDS
            book.change(partial(after_failure, sent=message, why=failure.why, now=datetime.now(UTC), is_late=is_late))
            if is_last_failure(message, is_late=is_late):
                failed[-1] += "; it is not sent again" + (", as its receiver may have it" if is_late else "")

    _deliver(_claim_pending(book), known, sleep, remark, note)
    return failed


class _Failure(NamedTuple):
    """Failed delivery of a message."""

    why: str
    seconds: float | None = None
    """Duration of the last try; `None` if the message was not sent."""


def _undelivered(message: Outgoing, why: str) -> str:
    return f"the alert {message.subject!r} could not be delivered to {message.block}: {why}"


def _claim_pending(book: AlertBook) -> list[Outgoing]:
    """Reserve and return the pending messages that no other sender has reserved."""
    now = datetime.now(UTC)
    claimed: list[Outgoing] = []

    def take(state: AlertState) -> AlertState:
        claimed.clear()
        for message in state.pending:
            changed = claim(state, message, now, now + _LEASE)
            if changed != state:
                claimed.append(message)
            state = changed
        return state

    if book.read().pending:
        book.change(take)
    return claimed


def _deliver(
    messages: Sequence[Outgoing],
    known: Blocks,
    sleep: Callable[[float], None],
    remark: str,
    note: Callable[[Outgoing, _Failure | None], None],
) -> None:
    """Send messages to all receivers in parallel, reporting to `note`.

    All tries begin within `_DELIVERY_SECONDS`: a receiver that does not answer holds no round.
    """
    by_block: dict[str, list[Outgoing]] = {}
    for message in messages:
        by_block.setdefault(message.block, []).append(message)
    lock, deadline = Lock(), time.monotonic() + _DELIVERY_SECONDS

    def send_block(lot: Sequence[Outgoing]) -> None:
        pauses: Sequence[float] = _PAUSES_SECONDS
        for message in lot:
            failure = _attempt(message, known, sleep, remark, pauses, deadline)
            if failure is not None:
                pauses = ()  # the receiver has had its tries: one more for each later message
            with lock:
                note(message, failure)

    if not by_block:
        return
    with ThreadPoolExecutor(len(by_block), thread_name_prefix="alert") as pool:
        begun = [pool.submit(copy_context().run, send_block, lot) for lot in by_block.values()]
        for future in begun:
            future.result()


def _attempt(  # noqa: PLR0917 - one delivery, fully described
    message: Outgoing, known: Blocks, sleep: Callable[[float], None], remark: str, pauses: Sequence[float],
    deadline: float,
) -> _Failure | None:  # fmt: skip
    """Send a message, again if it is refused at once; return the failure."""
    failure = _Failure(f"its receiver took longer than {_DELIVERY_SECONDS:g} s for earlier alerts")
    body = "\n\n".join(part for part in (message.body, remark, f"alert {message.id}") if part)
    for pause in (0.0, *pauses):
        if time.monotonic() + pause > deadline:
            break
        if pause:
            sleep(pause)
        begin = time.monotonic()
        why = send(message.block, message.subject, body, known, event=message.event, about=message.about)
        if not why:
            return None
        failure = _Failure(why, time.monotonic() - begin)
        if failure.seconds is not None and failure.seconds > _LATE_SECONDS:
            break
    return failure
