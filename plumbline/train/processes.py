"""Processes of this training, and their CPU time."""

from __future__ import annotations

import os
from pathlib import Path

from plumbline.variables import variable


def _words(process: int) -> list[str]:
    """Return a process's `stat` fields from its state on; empty if it ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def own_processes() -> set[int]:
    """Return this process, or all ranks of this training on this machine with their children.

    `torchrun` gives each rank its own session; ranks share a parent and a command. The command distinguishes them from
    a different training of the same shell.
    """
    me = os.getpid()
    if int(variable("WORLD_SIZE", "1")) == 1:
        return {me}
    candidates = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {process: int(fields[1]) for process in candidates if (fields := _words(process))}
    parent, command = os.getppid(), _command(me)
    family = {me, *(member for member, above in parents.items() if above == parent and _command(member) == command)}
    while new := {member for member, above in parents.items() if above in family} - family:
        family |= new
    return family


def own_jiffies() -> float:
    """Return the CPU time of this training's processes, in jiffies."""
    return sum(float(fields[11]) + float(fields[12]) for process in own_processes() if (fields := _words(process)))
