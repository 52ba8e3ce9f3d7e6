"""Small HTTP server with S3 and Azure objects, and planned faults."""

from __future__ import annotations

from tests.faultserver.faults import (
    Change,
    Corrupt,
    Denied,
    Fault,
    FullAnswer,
    Missing,
    RedirectLoop,
    Reset,
    Stall,
    Status,
    Trickle,
    Truncate,
    WrongLength,
)
from tests.faultserver.server import FaultServer, Served

__all__ = [
    "Change",
    "Corrupt",
    "Denied",
    "Fault",
    "FaultServer",
    "FullAnswer",
    "Missing",
    "RedirectLoop",
    "Reset",
    "Served",
    "Stall",
    "Status",
    "Trickle",
    "Truncate",
    "WrongLength",
]
