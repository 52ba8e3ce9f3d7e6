"""Follow a controller by the events that it prints, one JSON document a line, until it ends or dies."""

from __future__ import annotations

import json
import os
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plumbline.localstack.process import Child

__all__ = ["Ended", "follow"]

_TICK_SECONDS = 0.2
_MAX_LINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a controller ended: with its last event, or without one, killed."""

    event: dict[str, Any] | None
    how: str
    killed: bool


def follow(child: Child, on_event: Callable[[dict[str, Any]], None], on_tick: Callable[[], None]) -> Ended:
    """Hand every event on, and tick several times a second; returns when the process has ended."""
    if child.process.stdout is None:
        raise ValueError("the controller was started without pipes")
    descriptor = child.process.stdout.fileno()
    os.set_blocking(descriptor, False)
    last: dict[str, Any] | None = None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        open_ = True
        while open_:
            if selector.select(_TICK_SECONDS):
                chunk = os.read(descriptor, 1 << 16)
                open_ = bool(chunk)
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    event = _parse(line)
                    if event.get("event") in ("end", "error"):
                        last = event
                    elif event:
                        on_event(event)
            on_tick()
    child.process.wait()
    return Ended(last, child.ending, killed=last is None and child.process.returncode < 0)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line[:_MAX_LINE_BYTES])
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
