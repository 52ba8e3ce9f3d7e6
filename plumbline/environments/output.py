"""Output of a training's process, relayed in bounds until its end."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from plumbline.environments.control_groups import memory_limit
from plumbline.environments.processes import GRACE_SECONDS
from plumbline.schema.errors import ExitCode, PlumblineError, TrainingError, UnavailableError, memory_hint

Listener = Callable[[dict[str, Any]], None]
LONGEST_LINE = 4096
"""Characters after which a line is relayed in parts."""
_RELAYED_LINES = 10_000
_LAST_LINES = 100
"""Of longer output, the number of last lines that are relayed behind the first ones."""
_POLL_SECONDS = 0.5


def follow(
    child: subprocess.Popen[str], listener: Listener | None, deadline: float | None,
    should_stop: Callable[[], bool], *, echo: bool, has_events: bool = True,
) -> int:  # fmt: skip
    """Relay a process's output until its end; return the exit code.

    Raises `UnavailableError` at the deadline (by the monotonic clock), or once `should_stop`.
    """
    streams = [stream for stream in (child.stdout, child.stderr) if stream is not None]
    readers = [
        threading.Thread(
            target=_relay, args=(stream, listener), kwargs={"echo": echo, "has_events": has_events}, daemon=True
        )
        for stream in streams
    ]
    for reader in readers:
        reader.start()
    while child.poll() is None:
        if should_stop():
            raise UnavailableError("the round has ended", where="trainer")
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise UnavailableError("did not end in time", where="trainer", key="timeout_seconds")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS if left is None else min(left, _POLL_SECONDS))
    for reader in readers:
        reader.join(GRACE_SECONDS)
    return child.returncode


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _relay(stream: IO[str], listener: Listener | None, *, echo: bool, has_events: bool) -> None:
    """Forward progress events and other output lines; with `echo`, also to stderr."""

    def say(line: str) -> None:
        if echo:
            sys.stderr.write(line)
        if listener:
            listener({"event": "said", "line": line.strip()})

    num_said, last = 0, deque[str](maxlen=_LAST_LINES)
    while line := stream.readline(LONGEST_LINE):
        event = _event(line) if has_events else None
        if event is not None and listener:
            listener(event)
        elif event is None and line.strip():
            num_said += 1
            if num_said <= _RELAYED_LINES:
                say(line)
            else:
                last.append(line)
    for line in last:
        say(line)


class Last:
    """Last progress that a training reported, forwarded to the listener."""

    def __init__(self, listener: Callable[[dict[str, Any]], None] | None) -> None:
        self._listener = listener
        self.part, self.place = "", "trainer"

    def on_progress(self, event: dict[str, Any]) -> None:
        """Remember a progress event's step, and forward the event."""
        if event["event"] == "progress":
            self.part = str(event.get("part", ""))
            self.place = f"trainer: {self.part} step {event.get('step')}"
        if self._listener is not None:
            self._listener(event)


def death_of(code: int, num_kills: int, last: Last) -> PlumblineError | None:
    """Return the error of a trainer killed by a signal or lack of memory. Torchrun's exit code hides a signal."""
    hint = f"{memory_hint(last.part)}, or raise the memory limit of the pod, container or job"
    if num_kills > 0 and code not in {int(known) for known in ExitCode if known is not ExitCode.DRIFT}:
        limit = memory_limit()
        held = f"; the limit is {limit / 2**30:.1f} GiB" if limit else ""
        return TrainingError(
            f"killed by the kernel, which had no memory left for it{held}", where=last.place, hint=hint
        )
    if code == -signal.SIGKILL:
        hint = f"if memory ran out: {hint}"
        return UnavailableError(
            "killed by SIGKILL, without a reason that can be read here", where=last.place, hint=hint
        )
    return None
