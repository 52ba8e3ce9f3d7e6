"""Unprivileged process that stages one dataset: `part_child.py URL CACHE [hold]`.

It says when it first waits for another process. With `hold` it stops in the sync of its first whole file, just before
that gets its final name, says so, and goes on with a line on stdin. Root may write what it likes, so a child of root's
becomes another user, once all that it needs is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from plumbline.data.staging import Cache, Stager
from plumbline.data.staging.part import Part
from plumbline.data.stores import open_store
from plumbline.schema.errors import PlumblineError

NOBODY = 65534
_said: set[str] = set()


def say_once(what: str) -> bool:
    """Print a line, unless printed before."""
    if what in _said:
        return False
    _said.add(what)
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()
    return True


class TellingCache(Cache):
    """Cache that reports when a different process has the lock of a file."""

    def part(self, sha256: str, wait: Callable[[], None]) -> AbstractContextManager[Part | None]:
        """Report a locked part, then open it as usual."""

        def told() -> None:
            say_once("waiting")
            wait()

        return super().part(sha256, told)


def hold_in_sync() -> None:
    """Let the first `os.fsync` wait for a line."""
    sync = os.fsync

    def held_sync(descriptor: int) -> None:
        if say_once("in sync"):
            sys.stdin.readline()
        sync(descriptor)

    os.fsync = held_sync


def main(url: str, cache: str, how: str = "") -> None:
    """Stage all files in order; print the bytes moved, or the error."""
    store = open_store(url)
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if how == "hold":
        hold_in_sync()
    try:
        with Stager(store, "reviews", TellingCache(Path(cache)), connections=1) as stager:
            stager.start(stager.manifest.files)
            for file in stager.manifest.files:
                stager.wait(file)
            answer: dict[str, object] = {"moved": stager.bytes_moved}
    except PlumblineError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
