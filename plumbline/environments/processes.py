"""Families of processes: a child with all its descendants, which end with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from plumbline.environments.parent_watch import PARENT_WATCH

GRACE_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _processes() -> dict[int, tuple[int, str]]:
    """Return every process's parent and start time; empty without /proc."""
    processes: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since it was listed
        processes[int(path.parent.name)] = (int(fields[1]), fields[19])
    return processes


def descendants(pid: int) -> dict[int, str]:
    """Return all descendant processes of `pid` with their start times."""
    processes = _processes()
    family: set[int] = {pid}
    found: dict[int, str] = {}
    while new := {child for child, (parent, _) in processes.items() if parent in family and child not in family}:
        family |= new
        found |= {child: processes[child][1] for child in new}
    return found


def _stop(child: subprocess.Popen[str]) -> None:
    """Stop a child and its descendants: SIGTERM, then SIGKILL.

    The session outlives its leader, so the signal goes to the session; torchrun gives each worker its own session.
    """
    family = descendants(child.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        if child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)
    child.wait()
    kill(family)


def kill(family: Mapping[int, str]) -> None:
    """Kill those processes that still run, by their number and start time."""
    left = _processes() if family else {}
    for pid, started in family.items():
        if pid in left and left[pid][1] == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def started_child(
    command: list[str], environment: Mapping[str, str], folder: Path | None
) -> Iterator[subprocess.Popen[str]]:
    """Yield a child process in a new session; terminate it and its descendants afterwards."""
    child = subprocess.Popen(
        command, env={**environment, PARENT_WATCH: "stdin"}, start_new_session=True, text=True, errors="replace",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
    )  # fmt: skip
    try:
        with child:
            try:
                yield child
            finally:
                _stop(child)
    finally:
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
