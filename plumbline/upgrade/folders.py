"""Folders that are either complete or absent, and the lock of an upgrade's work folder.

One process at a time builds a folder under a different name, then renames it. One command at a time uses a work folder,
so that two never share runs and environments.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from plumbline.errors import ConfigurationError

_COPY_INSTEAD = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Another file system, too many links, links to files of others forbidden, no hard links at all."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside `path`.

    The lock ends with its process, also if the process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`; if it is missing, build it first.

    `build(PART)` fills a folder that is then renamed. A part left by a killed process is removed.
    """
    if folder.is_dir():
        return folder
    with locked(folder):
        if folder.is_dir():
            return folder
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            build(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return folder


def link_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Hard-link files from `source` into `target`, or copy them.

    A file that no longer exists is skipped.
    """
    made: set[str] = set()
    for name in names:  # some ten thousands: strings, for an object of each path takes as long as its link
        place = os.path.join(target, name)  # noqa: PTH118
        parent = os.path.dirname(place)  # noqa: PTH120
        if parent not in made:
            Path(parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        with suppress(FileNotFoundError):
            _link(os.path.join(source, name), place)  # noqa: PTH118


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=True)
    except FileExistsError:
        # Two packages may hold one file: the later one wins, as with an installer.
        Path(target).unlink()
        _link(source, target)
    except OSError as error:
        if error.errno not in _COPY_INSTEAD:
            raise
        shutil.copy2(source, target)


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
