"""Exit of a training: convert any exception to a recorded error code."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from plumbline.schema.base import read_model
from plumbline.schema.errors import (
    DISK_FULL,
    DeviceLostError,
    DiskFullError,
    PlumblineError,
    UnavailableError,
    memory_hint,
    record_code,
)
from plumbline.schema.record import MAX_MESSAGE, Exit
from plumbline.train.failure import (
    OUT_OF_MEMORY,
    PeerLostError,
    TrainingFailedError,
    causes,
    is_device_lost,
    is_out_of_memory,
    is_out_of_threads,
    pending_device_error,
)
from plumbline.train.ranks import Ranks

TrainingPlace = tuple[str, int | None]
"""Part and step."""

_PATTERN = "exit-*.json"
_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05


def clear_exits(folder: Path) -> None:
    """Remove the files that say how an earlier training's processes ended."""
    for path in folder.glob(_PATTERN):
        path.unlink(missing_ok=True)


def leave_exit(folder: Path, rank: int, ending: Exit) -> None:
    """Write this process's exit file, before other processes notice the failure.

    On a full disk there is no exit: the others then know of a lost process only.
    """
    path = folder / f"exit-{rank}.json"
    part = path.with_suffix(".part")
    with contextlib.suppress(OSError):
        part.write_text(ending.model_dump_json(), encoding="utf-8")
        part.replace(path)


def first_exit(folder: Path) -> tuple[int, Exit] | None:
    """Return rank and exit of the first failed process, or `None`."""
    found = []
    for path in folder.glob(_PATTERN):
        with contextlib.suppress(OSError, PlumblineError):
            rank = int(path.stem.partition("-")[2])
            found.append((path.stat().st_mtime_ns, rank, read_model(Exit, path)))
    return min(found)[1:] if found else None


def wait_for_end(stop: threading.Event) -> bool:
    """Wait up to ten seconds; return whether a stop was requested.

    torchrun asks every process to end 0.1 s after the first has ended. Polled, because the signal's handler sets the
    event in this thread, and must not find its lock taken.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while not stop.is_set() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return stop.is_set()


def conclude(
    error: Exception, ranks: Ranks, folder: Path, place: TrainingPlace, stop: threading.Event
) -> tuple[PlumblineError, Exit]:
    """Convert an exception to a Plumbline error and the record's exit.

    Where another process failed first, its exit is the record's: all that this process saw is a closed connection.
    """
    known = known_error(error, place, ranks.device)
    if ranks.world > 1 and _is_lost_peer(error, known, stop):
        known = PeerLostError(f"another process of the training has ended: {_line(error)}", where=_where(place))
        peer = first_exit(folder)
        if peer is not None:
            rank, left = peer
            return known, left.replace(message=f"process {rank}: {left.message}"[:MAX_MESSAGE])
    ending = _exit_of(known, place)
    if not ranks.is_first:
        leave_exit(folder, ranks.rank, ending)
    return known, ending


def _is_lost_peer(error: Exception, known: PlumblineError, stop: threading.Event) -> bool:
    """Return whether the error was caused by another process's end.

    In the backward pass a closed connection is a plain `RuntimeError`, as a failed operation is.
    """
    if isinstance(known, PeerLostError):
        return True
    is_open = isinstance(error, RuntimeError) and isinstance(known, TrainingFailedError) and known.code == "error"
    return is_open and wait_for_end(stop)


def known_error(error: Exception, place: TrainingPlace, device: torch.device) -> PlumblineError:
    """Convert any exception to a Plumbline error, inspecting its chained causes."""
    if isinstance(error, PlumblineError):
        return error
    pending = pending_device_error(device) if isinstance(error, RuntimeError) else None
    for cause in (*causes(error), *([pending] if pending else [])):
        found = _machine_error(cause, place)
        if found is not None:
            return found
    part, step = place
    return TrainingFailedError(_line(error), code="error", part=part, step=step)


def _machine_error(cause: BaseException, place: TrainingPlace) -> PlumblineError | None:
    """Return the error for a failed machine or service, else `None`."""
    part, step = place
    if is_out_of_memory(cause):
        return TrainingFailedError("out of memory", code=OUT_OF_MEMORY, part=part, step=step, hint=memory_hint(part))
    kind: type[PlumblineError] | None = None
    if isinstance(cause, dist.DistError):
        kind = PeerLostError
    elif is_device_lost(cause):
        kind = DeviceLostError
    elif isinstance(cause, OSError):
        kind = DiskFullError if cause.errno in DISK_FULL else UnavailableError
    elif is_out_of_threads(cause):
        kind = UnavailableError
    return kind(_line(cause), where=_where(place)) if kind else None


def _exit_of(error: PlumblineError, place: TrainingPlace) -> Exit:
    """Convert `error` to the exit entry of the record."""
    part, step = place
    code = record_code(error)
    if isinstance(error, TrainingFailedError):
        code, part, step = error.code, error.part or part, step if error.step is None else error.step
    return Exit(status="failed", code=code, message=str(error)[:MAX_MESSAGE], part=part, step=step)


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:500]}"


def _where(place: TrainingPlace) -> str:
    part, step = place
    return " ".join(filter(None, (part, "" if step is None else f"step {step}")))
