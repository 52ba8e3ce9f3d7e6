"""Processes of a running stack: parents, descendants, and whole machines that are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.flows.local_stack import RunningStack

__all__ = ["SERVER", "TRAINER", "kill_machine", "kill_tree", "parent", "read_ppid", "terminate_machine", "worker_pid"]

SERVER = "server start"
"""Command line of Prefect's server."""
TRAINER = "plumbline.train"
"""Command line of a training."""


def parent(pid: int) -> int:
    """Return the parent of a process."""
    result = read_ppid(pid)
    if result is None:
        raise AssertionError(f"the process {pid} has ended")
    return result


def read_ppid(pid: int) -> int | None:
    """Return the parent of a process; `None` if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def _family(root: int) -> list[int]:
    """Return a process and its descendants."""
    parents = {int(path.name): read_ppid(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    family = [root]
    for pid in family:  # it grows meanwhile
        family += [child for child, ppid in parents.items() if ppid == pid]
    return family


def kill_tree(root: int) -> list[int]:
    """Kill a process and its descendants at once, like a power failure; return their ids."""
    family = _family(root)
    # Nothing of a machine without power notices the end of the rest: stop everything first.
    _send(family, signal.SIGSTOP)
    _send(family, signal.SIGKILL)
    return family


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def worker_pid(stack: RunningStack, name: str) -> int:
    """Return the process of the worker of a platform, or of the controllers."""
    return stack.stack._workers[name].process.pid


def kill_machine(stack: RunningStack, name: str) -> list[int]:
    """Kill a worker with all its flow runs and trainings, like a power failure."""
    return kill_tree(worker_pid(stack, name))


def terminate_machine(stack: RunningStack, name: str, grace_seconds: float) -> None:
    """Send SIGTERM to a worker, its flow runs and trainings together, and SIGKILL to what is left, as at a shutdown."""
    family = _family(worker_pid(stack, name))
    _send(family, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and any(_runs(pid) for pid in family):
        time.sleep(0.1)
    _send((pid for pid in family if _runs(pid)), signal.SIGKILL)


def _runs(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    return "State:\tZ" not in status
