"""Children that leave nothing behind: each is marked in its environment, and its descendants inherit the mark.

Workers start flow runs, and flow runs start trainings, each in a session of its own, so a process group does not reach
them. The mark does, also after the process between has died.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "Child", "adopt_orphans", "end_marked", "find_by_mark", "reap_orphans", "start", "stop"]

MARK = "PLUMBLINE_STACK"
_TAIL_BYTES = 8192
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Child:
    """One process that we started, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self.process.poll()
        if code is None:
            return "runs"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_line(self) -> str:
        """Return the last line of its log, usually the reason of its end; empty without a log."""
        if self.log is None:
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def interrupt(self, seconds: float) -> None:
        """Send what Ctrl-C sends, and wait for the end at most so long."""
        _signal(self.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)


def start(
    name: str,
    command: Sequence[str],
    *,
    log: Path | None,
    environment: Mapping[str, str],
    folder: Path,
    core: int | None = None,
) -> Child:
    """Start `command` in a session of its own, so that the terminal's Ctrl-C reaches only us.

    Its output goes to `log`, or where ours goes. With `core`, it and its descendants stay on that core.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        output = None
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = files.enter_context(log.open("ab"))
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    # Set at once, before the child has any thread: threads and children inherit it.
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    return Child(name, process, log)


def stop(children: Iterable[Child], *, grace_seconds: float) -> None:
    """Ask each child to end, wait, and kill what is left; returns when all are reaped."""
    running = [child for child in children if child.alive]
    for child in running:
        _signal(child.process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    for child in running:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(child.process.pid, signal.SIGKILL)
            child.process.wait()


def find_by_mark(mark: str) -> list[int]:
    """Every process whose environment carries this mark, but not ourselves. None where there is no /proc."""
    needle = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # it ended, or belongs to somebody else
            continue
        if needle in environment.split(b"\0") and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def end_marked(mark: str, *, grace_seconds: float, reap: Callable[[], None] = lambda: None) -> list[int]:
    """End every process that carries the mark; those that could not be ended, which should be none.

    `reap` collects our own children, which would otherwise stay visible as zombies.
    """
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        while left := find_by_mark(mark):
            # Again and again: a process may have forked between the look and the signal.
            for pid in left:
                _signal(pid, number)
            reap()
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    return find_by_mark(mark)


def adopt_orphans() -> None:
    """Have the kernel hand us the descendants whose parent died, so that we can collect them (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(own: Iterable[int]) -> None:
    """Collect adopted children that have ended; not our `own`, whose endings somebody waits for."""
    ours, parent = set(own), f"\nPPid:\t{os.getpid()}\n"
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        with suppress(OSError):
            status = (entry / "status").read_text()
            if parent in status and "\nState:\tZ" in status and pid not in ours:
                os.waitpid(pid, os.WNOHANG)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
