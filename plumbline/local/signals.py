"""Handling of termination signals in commands and during clean-up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TERMINATIONS = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
"""Windows has no SIGHUP."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block termination signals during a short clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *_TERMINATIONS)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Make SIGTERM and SIGHUP act like Ctrl-C, unless ignored as under `nohup`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in _TERMINATIONS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
