"""How a controller tells the command that started it what happens: one JSON line per event."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["EVENTS", "Phases", "events_only", "tell"]

EVENTS = "PLUMBLINE_EVENTS"
"""The file descriptor to write events to; without it, nobody listens."""


def events_only() -> None:
    """Keep stdout for events; whatever else is printed goes to stderr, the log."""
    os.environ[EVENTS] = str(os.dup(1))
    os.dup2(2, 1)


def tell(event: str, **fields: Any) -> None:
    """Send one event to the command, if there is one."""
    if descriptor := os.environ.get(EVENTS):
        line = (json.dumps({"event": event, **fields}, allow_nan=False) + "\n").encode()
        while line:
            line = line[os.write(int(descriptor), line) :]


class Phases:
    """What the round is at, and how long each phase took."""

    def __init__(self, show: Callable[[dict[str, Any]], None], names: Sequence[str]) -> None:
        self.timings: dict[str, float] = {}
        self._show = show
        self._names = names

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Enter a phase."""
        tell("phase", name=name)
        place, count = self._names.index(name), len(self._names)
        self._show({"part": name, "step": place, "steps": count, "words": f"{place + 1} of {count}"})
        began = time.monotonic()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.monotonic() - began
