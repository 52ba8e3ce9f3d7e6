"""A folder for the time of a round; what is worth keeping goes to the stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["work_folder"]


@contextmanager
def work_folder(state: Path, name: str) -> Iterator[Path]:
    """A folder of this name below the state folder, empty at first, and gone in the end."""
    folder = (state / "work" / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
