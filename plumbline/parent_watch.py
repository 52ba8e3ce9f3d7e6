"""The watch of a child on its parent: the child ends when the parent is gone, also after `kill -9`.

The parent starts the child with a pipe as its stdin and `PARENT_WATCH` in its environment, and writes nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

__all__ = ["PARENT_WATCH", "watch_parent"]

PARENT_WATCH = "PLUMBLINE_PARENT_WATCH"
_GRACE_SECONDS = 10.0


def watch_parent(environment: Mapping[str, str]) -> None:
    """End this process once the pipe from its parent ends: SIGTERM first, SIGKILL after ten seconds."""
    if environment.get(PARENT_WATCH) == "stdin":
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="parent-watch", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_SECONDS)
    # The session is our own: whatever we started goes with us.
    os.killpg(0, signal.SIGKILL)
