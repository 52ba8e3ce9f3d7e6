"""A leash: a child that ends when the process that holds the other end is gone, also after `kill -9`.

The holder starts the child with a pipe as its stdin and `LEASH` in its environment, and writes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

__all__ = ["LEASH", "follow_leash"]

LEASH = "PLUMBLINE_LEASH"
_GRACE_SECONDS = 10.0


def follow_leash(environment: Mapping[str, str]) -> None:
    """In the child: end once the pipe does; politely first, so that what can be written is."""
    if environment.get(LEASH) == "stdin":
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="leash", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_SECONDS)
    # The session is our own: whatever we started goes with us.
    os.killpg(0, signal.SIGKILL)
