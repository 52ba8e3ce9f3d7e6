"""Other processes of a training: their exits, left in the record's folder."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

from plumbline.errors import PlumblineError
from plumbline.schema.base import read_model
from plumbline.schema.record import Exit

_PATTERN = "exit-*.json"
_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05


def clear_exits(folder: Path) -> None:
    """Remove the exits of an earlier training."""
    for path in folder.glob(_PATTERN):
        path.unlink(missing_ok=True)


def leave_exit(folder: Path, rank: int, ending: Exit) -> None:
    """Leave a process's exit, before the other processes notice its end.

    On a full disk there is no exit: the others then know of a lost process only.
    """
    path = folder / f"exit-{rank}.json"
    part = path.with_suffix(".part")
    with contextlib.suppress(OSError):
        part.write_text(ending.model_dump_json(), encoding="utf-8")
        part.replace(path)


def first_exit(folder: Path) -> tuple[int, Exit] | None:
    """Return rank and exit of the process that failed first; `None` if none left an exit."""
    found = []
    for path in folder.glob(_PATTERN):
        with contextlib.suppress(OSError, PlumblineError):
            rank = int(path.stem.partition("-")[2])
            found.append((path.stat().st_mtime_ns, rank, read_model(Exit, path)))
    return min(found)[1:] if found else None


def wait_for_end(stop: threading.Event) -> bool:
    """Return whether this process is asked to end within ten seconds.

    torchrun asks every process to end 0.1 s after the first has ended. Polled, because the signal's handler sets the
    event in this thread, and must not find its lock taken.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while not stop.is_set() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return stop.is_set()
