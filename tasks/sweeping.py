"""Garbage collection in a thread of its own, for a server that keeps its state in SQLite.

An error leaves a reference cycle that holds a cursor. Python may collect it anywhere, on the event loop's thread too,
and resetting a cursor waits for its connection's mutex. If that connection is just then waiting for SQLite's write
lock (for up to 60 s, as Prefect sets it), and the transaction that holds the lock needs the event loop to go on, the
server answers nobody until the wait runs out. A thread that does nothing else may wait as long as it has to.
"""

from __future__ import annotations

import gc
import itertools
import threading
import time

__all__ = ["sweep_apart"]

_SECONDS = 1.0
_FULL_EVERY = 60
"""Turns; between them the young generations, a few milliseconds, in which nothing else runs."""


def sweep_apart(seconds: float = _SECONDS) -> None:
    """From now on, and for all of the process's life, garbage is collected in one daemon thread only."""
    gc.collect()
    gc.freeze()
    gc.disable()
    threading.Thread(target=_sweep, args=(seconds,), name="sweep", daemon=True).start()


def _sweep(seconds: float) -> None:
    for turn in itertools.count(1):
        time.sleep(seconds)
        gc.collect(2 if turn % _FULL_EVERY == 0 else 1)
