"""Locks of open files, which end with their process, also after a kill: the one place that imports `fcntl`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import IO

from plumbline.schema.errors import ConfigurationError


def lock(file: IO[bytes] | IO[str] | int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file; raise `BlockingIOError` if locked elsewhere, `ConfigurationError` on Windows."""
    try:
        import fcntl
    except ModuleNotFoundError as error:
        raise ConfigurationError("locking a file needs Linux", hint="on Windows: WSL 2") from error
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def can_lock() -> bool:
    """Return whether this system locks files."""
    return find_spec("fcntl") is not None


def try_lock(file: IO[bytes] | int) -> bool:
    """Try to lock an open file exclusively; return `False` if locked elsewhere."""
    try:
        lock(file, wait=False)
    except BlockingIOError:
        return False
    return True
