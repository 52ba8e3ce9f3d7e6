"""Removal of the folders that killed flow runs of Prefect leave in the temporary folder.

Prefect's worker keeps the whole environment of a flow run, keys included, in `workspace.json` while the run lasts, and
removes it afterwards. A worker that is killed removes nothing.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PREFIX = "prefect-workspace-attempt-"
"""Start of the folders' names, of Prefect's own."""
_YOUNG_SECONDS = 60.0
"""Between the making of a folder and the start of the process that names it, and between that process's end and now."""


def sweep_workspaces(parent: Path | None = None) -> None:
    """Remove this user's folders that no running process names, in `parent` (default: the system's).

    Without `/proc` nothing is known of other processes, and nothing is removed.
    """
    folders = [path for path in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*") if _is_old(path)]
    if not folders or not Path("/proc/self/cmdline").is_file():
        return
    commands = _commands()
    for folder in folders:
        if not any(folder.name.encode() in command for command in commands):
            shutil.rmtree(folder, ignore_errors=True)


def _is_old(folder: Path) -> bool:
    with suppress(OSError):
        about = folder.lstat()
        return about.st_uid == os.getuid() and time.time() - about.st_mtime > _YOUNG_SECONDS
    return False


def _commands() -> list[bytes]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended since it was listed
            commands.append(path.read_bytes())
    return commands


if __name__ == "__main__":
    sweep_workspaces()
    sys.exit(0)
