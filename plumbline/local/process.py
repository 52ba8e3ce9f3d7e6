"""Child processes, marked by an environment variable that descendants inherit.

Workers start flow runs, and flow runs start trainings, each in its own session, so a process group does not reach them.
The mark does, also after an intermediate process has died.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "PLUMBLINE_STACK"
_TAIL_BYTES = 8192


def account(user: str) -> tuple[int, int]:
    """Return a user's number and group; used as root alone, so `pwd` is there."""
    import pwd

    return pwd.getpwnam(user)[2:4]


@dataclass
class Child:
    """Started child process, with its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path | None

    @property
    def alive(self) -> bool:
        """Return whether the process still runs."""
        return self.process.poll() is None

    @property
    def ending(self) -> str:
        """Describe how the process ended: exit code or signal."""
        code = self.process.poll()
        if code is None:
            return "runs"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def last_lines(self, count: int = 2) -> str:
        """Return the log's last lines, usually the reason of the end."""
        if self.log is None:
            return ""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
        return " | ".join([line for line in lines if line][-count:])

    def interrupt(self, seconds: float) -> None:
        """Send SIGINT, and wait up to `seconds` for the end."""
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
    user: str | None = None,
) -> Child:
    """Start `command` in its own session, unaffected by the terminal's Ctrl-C.

    Output goes to `log`, or is inherited. Only this user can read what the process writes. With `core`, the process and
    its descendants stay on that core. Root may name the `user` that it runs as.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ExitStack() as files:
        output = None
        if log is not None:
            log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            log.touch(mode=0o600)
            output = files.enter_context(log.open("ab"))
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            umask=0o077,
            user=user,
            group=None if user is None else account(user)[1],
            extra_groups=None if user is None else [],
        )
    # Set at once, as threads and children inherit the affinity.
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(process.pid, {core})
    return Child(name, process, log)


def stop(children: Iterable[Child], *, grace_seconds: float) -> None:
    """Terminate the children, wait, kill survivors, and reap all."""
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
    """Return all processes with this mark, except the current one."""
    import psutil  # comes with the local stack; a controller has none

    processes = psutil.process_iter(["environ"])
    marked = [each.pid for each in processes if (each.info["environ"] or {}).get(MARK) == mark]
    return [pid for pid in marked if pid != os.getpid()]


def end_marked(mark: str, *, grace_seconds: float, reap: Callable[[], None] = lambda: None) -> list[int]:
    """End every process with this mark; return survivors, normally none.

    `reap` collects this process's own children, which would otherwise stay visible as zombies.
    """
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + seconds
        while left := find_by_mark(mark):
            # Repeated, as a process may fork between the search and the signal.
            for pid in left:
                _signal(pid, number)
            reap()
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
    return find_by_mark(mark)


def reap_orphans(own: Iterable[int]) -> None:
    """Reap adopted children that have ended, except those in `own`."""
    import psutil

    ours = set(own)
    for child in psutil.Process().children():
        with suppress(OSError, psutil.NoSuchProcess):
            if child.pid not in ours and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
