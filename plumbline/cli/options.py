"""What several commands ask of their options, before any work is done that a wrong one would leave half behind."""

from __future__ import annotations

import os
from pathlib import Path

from plumbline.errors import ConfigurationError

__all__ = ["at_least", "check_file", "check_folder"]


def at_least(option: str, value: int, least: int) -> int:
    """The value; `ConfigurationError` if it is less than `least`."""
    if value < least:
        raise ConfigurationError(f"{value} is less than {least}", where=option)
    return value


def check_file(path: Path, *, option: str = "--out", parents: bool = False) -> None:
    """`ConfigurationError` if no file can be written at `path`; with `parents`, its folders are made on the way."""
    if path.is_dir():
        raise _refusal(path, option, "is a folder", "name a file")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise _refusal(path, option, "may not be written", "name another file")
        return
    if not parents and not path.parent.exists():
        raise _refusal(path.parent, option, "no such folder", "make it first, or name another file")
    check_folder(path.parent, option=option)


def check_folder(path: Path, *, option: str = "--out") -> None:
    """`ConfigurationError` if `path` is not a folder to write into, and none can be made there."""
    folder = path.absolute()
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise _refusal(there if there != folder else path, option, "is not a folder", "name another one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _refusal(there if there != folder else path, option, "may not be written into", "name another folder")


def _refusal(path: Path, option: str, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(what, where=str(path), key=option, hint=hint)
