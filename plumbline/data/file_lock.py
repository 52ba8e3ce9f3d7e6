"""Locks of open files, which end with their process, also after a kill: the one place that imports `fcntl`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import IO

from plumbline.schema.errors import ConfigurationError


def _locks() -> ModuleType | None:
    """Return the module of this system's locks, imported before a process gives up a right; Windows has none."""
    try:
        return import_module("fcntl")
    except ModuleNotFoundError:
        return None


_FCNTL = _locks()


def lock(file: IO[bytes] | IO[str] | int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file; raise `BlockingIOError` if locked elsewhere, `ConfigurationError` on Windows."""
    if _FCNTL is None:
        raise ConfigurationError("locking a file needs Linux or macOS", hint="on Windows: WSL 2")
    _FCNTL.flock(file, (_FCNTL.LOCK_SH if shared else _FCNTL.LOCK_EX) | (0 if wait else _FCNTL.LOCK_NB))


def can_lock() -> bool:
    """Return whether this system locks files."""
    return _FCNTL is not None


def try_lock(file: IO[bytes] | int) -> bool:
    """Try to lock an open file exclusively; return `False` if locked elsewhere."""
    try:
        lock(file, wait=False)
    except BlockingIOError:
        return False
    return True
