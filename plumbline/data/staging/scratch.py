"""Temporary folders, removed later even if their process was killed.

A scratch folder contains a file that its process keeps locked. The lock ends with the process, so that a folder whose
file can be locked has no owner any more.

A workspace is a folder of Prefect's worker: it keeps the whole environment of a flow run, keys included, while the run
lasts, and removes it afterwards. A worker that is killed removes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plumbline.data.file_lock import can_lock, try_lock
from plumbline.data.staging.part import is_still

_OWNER = ".plumbline-owner"

WORKSPACE_PREFIX = "prefect-workspace-attempt-"
"""Start of the names of Prefect's own folders."""
_YOUNG_WORKSPACE_SECONDS = 60.0
"""Between the making of a folder and the start of the process that names it, and between that process's end and now."""


@contextmanager
def scratch_folder(prefix: str = "plumbline-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new temporary folder in `parent`, removed at the end. Remove those of dead processes."""
    parent = parent or Path(tempfile.gettempdir())
    if not can_lock():
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as unlocked:
            yield Path(unlocked)
        return
    _sweep(parent)
    folder, owner = _make(prefix, parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Create a folder; return its path and its locked file's descriptor."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # A sweep may come between both steps.
        if try_lock(owner) and is_still(owner, folder / _OWNER):
            return folder, owner
        os.close(owner)


def _sweep(parent: Path) -> None:
    """Remove this user's folders of processes that have ended."""
    for path in parent.glob(f"*/{_OWNER}"):
        with contextlib.suppress(OSError):
            owner = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(owner).st_uid == os.getuid() and try_lock(owner) and is_still(owner, path):
                    shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(owner)


def sweep_workspaces(parent: Path | None = None) -> None:
    """Remove this user's folders in `parent` that no running process uses.

    Without `/proc` nothing is known of other processes, and nothing is removed.
    """
    folders = [path for path in (parent or Path(tempfile.gettempdir())).glob(f"{WORKSPACE_PREFIX}*") if _is_old(path)]
    if not folders or not Path("/proc/self/cmdline").is_file():
        return
    commands = _commands()
    for folder in folders:
        if not any(folder.name.encode() in command for command in commands):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    with suppress(OSError):
        about = folder.lstat()
        return about.st_uid == os.getuid() and time.time() - about.st_mtime > _YOUNG_WORKSPACE_SECONDS
    return False


def _commands() -> list[bytes]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since it was listed
            commands.append(path.read_bytes())
    return commands


if __name__ == "__main__":
    sweep_workspaces()
    sys.exit(0)
