"""Folders that are either complete or absent.

One process at a time builds a folder under a different name, then renames it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["build_once", "link_files", "locked"]

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
