"""Command options, validated before work starts, and output of lines."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentTypeError
from pathlib import Path

from plumbline.schema.errors import ConfigurationError
from plumbline.schema.escape import one_line
from plumbline.schema.variables import variable

_LAST_PORT = 65535
QUIET = "PLUMBLINE_QUIET"
"""Variable that is set if no progress is to be shown."""


def summary(doc: str | None) -> str:
    """Return what a command does, from the first line of its module's docstring (`USAGE`: WHAT. MORE)."""
    first = (doc or "").partition("\n")[0].partition("`: ")[2]
    return first.partition(". ")[0].removesuffix(".")


def is_quiet() -> bool:
    """Return whether progress output is suppressed."""
    return bool(variable(QUIET))


def program() -> str:
    """Return the command as this shell finds it: `plumbline`, or the path of this environment's."""
    own = Path(sys.executable).with_name("plumbline")
    is_own = own.exists() and shutil.which("plumbline") is None
    return min(os.path.relpath(own), str(own), key=len) if is_own else "plumbline"


def at_least(option: str, value: int, least: int) -> int:
    """Return the value; raise `ConfigurationError` if below `least`."""
    if value < least:
        raise ConfigurationError(f"{value} is less than {least}", where=option)
    return value


def port(text: str) -> int:
    """Parse a port number; raise `ArgumentTypeError` if it is none."""
    if text.isdecimal() and 1 <= int(text) <= _LAST_PORT:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is not a port (1 to {_LAST_PORT})")


def check_file(path: Path, *, option: str = "--out", parents: bool = False) -> None:
    """Raise unless a file can be written at `path`, creating its `parents`."""
    if path.is_dir():
        raise _refusal(path, option, "is a folder", "name a file")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise _refusal(path, option, "may not be written", "name a different file")
        return
    if not parents and not path.parent.exists():
        raise _refusal(path.parent, option, "no such folder", "create it first, or name a different file")
    check_folder(path.parent, option=option)


def check_folder(path: Path, *, option: str = "--out") -> None:
    """Raise unless `path` is a writable folder or can become one."""
    folder = path.absolute()
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not there.is_dir():
        raise _refusal(there if there != folder else path, option, "is not a folder", "name a different one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise _refusal(there if there != folder else path, option, "may not be written into", "name a different folder")


def say(line: str, *, to_stderr: bool = False) -> None:
    """Print one line, escaping untrusted text."""
    print(one_line(line), file=sys.stderr if to_stderr else sys.stdout)


def _refusal(path: Path, option: str, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(what, where=str(path), key=option, hint=hint)
