"""What a drill says: on the screen as it happens, and kept for the result."""

from __future__ import annotations

import time

__all__ = ["SAID", "expect", "expect_soon", "say"]

SAID: list[str] = []
"""The lines of the case that runs."""


def say(line: str) -> None:
    """Print one line, and keep it."""
    SAID.append(line)
    print(f"    {line}", flush=True)


def expect(condition: bool, what: str) -> None:
    """Say that it holds, or fail the drill."""
    if not condition:
        raise AssertionError(what)
    say(f"ok: {what}")


def expect_soon(began: float, seconds: float, what: str) -> None:
    """Wait a second, and fail once the time is over: for a loop that looks again and again."""
    if time.monotonic() - began > seconds:
        raise AssertionError(f"{what}: not within {seconds:g} s")
    time.sleep(1)
