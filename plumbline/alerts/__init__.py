"""Alerts: who is told of what, once. The state is pure; the book keeps it in the central store."""

from plumbline.alerts.book import AlertBook
from plumbline.alerts.state import (
    AlertState,
    Open,
    Outgoing,
    after_failure,
    after_success,
    claim,
    missed,
    told_once,
    update,
)
from plumbline.alerts.words import Told, tell_broken, tell_test

__all__ = [
    "AlertBook",
    "AlertState",
    "Open",
    "Outgoing",
    "Told",
    "after_failure",
    "after_success",
    "claim",
    "missed",
    "tell_broken",
    "tell_test",
    "told_once",
    "update",
]
