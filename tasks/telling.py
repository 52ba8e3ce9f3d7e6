"""How a controller tells the command that started it what happens: one JSON line per event."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["EVENTS", "phase", "tell"]

EVENTS = "PLUMBLINE_EVENTS"
"""The file descriptor to write events to; without it, nobody listens."""


def tell(event: str, **fields: Any) -> None:
    """Send one event to the command, if there is one."""
    if descriptor := os.environ.get(EVENTS):
        line = (json.dumps({"event": event, **fields}, allow_nan=False) + "\n").encode()
        while line:
            line = line[os.write(int(descriptor), line) :]


@contextmanager
def phase(name: str) -> Iterator[None]:
    """What the round is at."""
    tell("phase", name=name)
    yield
