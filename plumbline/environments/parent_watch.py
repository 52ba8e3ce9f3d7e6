"""Watch that ends a child process when its parent dies.

The parent starts the child with a pipe as its stdin and `PARENT_WATCH` in its environment, and writes no data.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

PARENT_WATCH = "PLUMBLINE_PARENT_WATCH"
_GRACE_SECONDS = 10.0


def watch_parent(environment: Mapping[str, str]) -> None:
    """Terminate this process (SIGTERM, then SIGKILL) when its parent's pipe closes."""
    if environment.get(PARENT_WATCH) == "stdin":
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), name="parent-watch", daemon=True).start()


def _watch(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_SECONDS)
    # The signal goes to the whole session, with all descendants.
    os.killpg(0, signal.SIGKILL)
