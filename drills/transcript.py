"""The transcript of a drill: printed as it happens, and kept for the results file."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["LINES", "expect", "say", "wait_until"]

LINES: list[str] = []
"""The lines of the running drill."""


def say(line: str) -> None:
    """Print one line, and keep it."""
    LINES.append(line)
    print(f"    {line}", flush=True)


def expect(condition: bool, statement: str) -> None:
    """Record whether the statement holds; raise `AssertionError` if not."""
    if not condition:
        raise AssertionError(statement)
    say(f"ok: {statement}")


def wait_until(condition: Callable[[], bool], statement: str, seconds: float = 60.0) -> None:
    """Wait until the condition holds; raise `AssertionError` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{statement}: not within {seconds:g} s")
        time.sleep(0.1)
