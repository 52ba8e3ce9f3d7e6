"""Lock of an upgrade's work folder.

Only one command at a time uses the folder, so that two never share runs and environments.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from plumbline.errors import ConfigurationError

__all__ = ["claimed"]

_LOCK_NAME = "plumbline-upgrade.lock"
"""A name of our own: `--work .` may hold whatever a user calls `lock`."""
_POLL_SECONDS = 0.5
_HINT = "wait for it, or choose a different folder with --work"


@contextmanager
def claimed(work: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Use the folder exclusively until the block ends.

    Raise `ConfigurationError` if a different upgrade uses it, or if it cannot be a work folder. The lock is a `flock`:
    it ends with its process, however that ends.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / _LOCK_NAME).open("ab")
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        hint = "name a folder that can be written"
        raise ConfigurationError(
            f"cannot be the work folder: {error.strerror}", where=str(work), key="--work", hint=hint
        ) from error
    with lock:
        _lock(lock, work, time.monotonic() + wait_seconds)
        yield


def _lock(lock: IO[bytes], work: Path, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise ConfigurationError("a different upgrade uses this folder", where=str(work), hint=_HINT) from error
        time.sleep(_POLL_SECONDS)
