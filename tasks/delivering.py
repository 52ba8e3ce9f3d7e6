"""What is pending goes out, each message with its own attempts, and is marked once it has arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from plumbline.alerts import AlertBook, AlertState, Outgoing, after_failure, after_success, claim
from tasks.addresses import Blocks
from tasks.sending import send

__all__ = ["deliver", "undelivered"]

_PAUSES = (1.0, 2.0, 4.0, 8.0)
_LEASE = timedelta(minutes=5)


def deliver(book: AlertBook, known: Blocks, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Send everything that is pending, each with its own attempts; the failures in words.

    A round, the watch and `alert --check` may come to it in the same minute: each message is sent by one of them.
    """
    failed = []
    for one in book.read()[0].pending:
        if not _claimed(book, one):
            continue
        why = _attempts(one, known, sleep)
        # Bound to the message: the state may have moved on meanwhile.
        book.change(partial(after_failure, sent=one, why=why) if why else partial(after_success, sent=one))
        if why:
            failed.append(undelivered(one.subject, one.block, why))
    return failed


def undelivered(subject: str, block: str, why: str) -> str:
    """A failed delivery in words."""
    return f"the alert {subject!r} could not be delivered to {block}: {why}"


def _claimed(book: AlertBook, one: Outgoing) -> bool:
    now = datetime.now(UTC)
    taken = False

    def take(state: AlertState) -> AlertState:
        nonlocal taken
        changed = claim(state, one, now, now + _LEASE)
        taken = changed != state
        return changed

    book.change(take)
    return taken


def _attempts(one: Outgoing, known: Blocks, sleep: Callable[[float], None]) -> str:
    why = ""
    for pause in (*_PAUSES, 0.0):
        body = f"{one.body}\n\nalert {one.id}"
        why = send(one.block, one.subject, body, known, event=one.event, about=one.about)
        if not why:
            return ""
        sleep(pause)
    return why
