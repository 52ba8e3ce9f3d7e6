"""Which processes of the machine are this training, and the CPU time that they took."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["own_jiffies", "own_processes"]


def _words(process: int) -> list[str]:
    """The fields of a process's `stat` from its state on; none where it has ended."""
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
    """This process alone, or all of a training that has several: every rank on this machine, and what each has started.

    `torchrun` gives each rank a session of its own; what ranks share is their parent and their command. The command
    tells them from another training that the same shell has started.
    """
    me = os.getpid()
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return {me}
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {process: int(words[1]) for process in found if (words := _words(process))}
    parent, command = os.getppid(), _command(me)
    family = {me, *(one for one, above in parents.items() if above == parent and _command(one) == command)}
    while new := {one for one, above in parents.items() if above in family} - family:
        family |= new
    return family


def own_jiffies() -> float:
    """CPU time of this training, all its processes together."""
    return sum(float(words[11]) + float(words[12]) for one in own_processes() if (words := _words(one)))
