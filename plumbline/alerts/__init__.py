"""Alerts: pure state, messages, and the state's document in the central store."""

from plumbline.alerts.book import AlertBook
from plumbline.alerts.due import Planned
from plumbline.alerts.messages import (
    AlertMessage,
    left_on_message,
    missed_message,
    no_verdict_message,
    probe_message,
    unchecked_message,
    unplanned_message,
)
from plumbline.alerts.state import (
    AlertState,
    Open,
    Outgoing,
    add_once,
    after_failure,
    after_success,
    claim,
    missed,
    update,
    watch_on,
)

__all__ = [
    "AlertBook",
    "AlertMessage",
    "AlertState",
    "Open",
    "Outgoing",
    "Planned",
    "add_once",
    "after_failure",
    "after_success",
    "claim",
    "left_on_message",
    "missed",
    "missed_message",
    "no_verdict_message",
    "probe_message",
    "unchecked_message",
    "unplanned_message",
    "update",
    "watch_on",
]
