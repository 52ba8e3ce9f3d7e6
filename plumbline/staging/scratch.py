"""Temporary folders that a later process removes, if the process that used them was killed.

Each folder contains a file that its process keeps locked. The lock ends with the process, so that a folder whose file
can be locked has no owner any more.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.staging.part import is_still, try_lock

_OWNER = ".plumbline-owner"


@contextmanager
def scratch_folder(prefix: str = "plumbline-", parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `parent` (default: the system's), removed at the end; remove those of dead processes."""
    parent = parent or Path(tempfile.gettempdir())
    _sweep(parent)
    folder, owner = _make(prefix, parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def _make(prefix: str, parent: Path) -> tuple[Path, int]:
    """Return a new folder and the descriptor of its locked file."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # A sweep may come between both steps.
        if try_lock(owner) and is_still(owner, folder / _OWNER):
            return folder, owner
        os.close(owner)


def _sweep(parent: Path) -> None:
    """Remove the folders of this user whose process has ended."""
    for path in parent.glob(f"*/{_OWNER}"):
        with contextlib.suppress(OSError):
            owner = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(owner).st_uid == os.getuid() and try_lock(owner) and is_still(owner, path):
                    shutil.rmtree(path.parent, ignore_errors=True)
            finally:
                os.close(owner)
