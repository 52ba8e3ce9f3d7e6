"""`python -m tasks.starting`: a flow run's process on the local stack, as `python -m prefect.engine` is elsewhere.

With `--wait` it loads Prefect, and is told by its stdin, later, which flow run it is: see `tasks.spare`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from plumbline.loading import without_collection

__all__ = ["COMMAND", "WAITING", "main"]

COMMAND = [sys.executable, "-m", "tasks.starting"]
WAITING = "--wait"
_OF_A_RUN = "PREFECT__"
"""How the variables begin that tell a process its flow run; nothing reads them while Prefect is loaded."""


def _state(environment: Mapping[str, str]) -> tuple[dict[str, str], list[int]]:
    """What a process is made of: its environment, and what is installed."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    lasting = {key: value for key, value in environment.items() if not key.startswith(_OF_A_RUN)}
    return lasting, [Path(folder).stat().st_mtime_ns for folder in sorted(folders)]


def _wait(loaded: tuple[dict[str, str], list[int]]) -> None:
    """Become what the line on stdin says; a process of another environment, or of other libraries, starts over."""
    order = json.loads(sys.stdin.buffer.readline() or "null")
    if order is None:  # the worker is gone
        sys.exit(0)
    environment, folder = order["environment"], order["folder"]
    os.chdir(folder)
    if _state(environment) != loaded:
        os.execve(COMMAND[0], COMMAND, environment)  # noqa: S606 - the command is our own
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder


def main() -> None:
    """Run the flow run that the environment names; the exit code is the engine's."""
    loaded = _state(os.environ)
    with without_collection():
        import prefect.flow_engine  # noqa: F401 - loaded here, for the engine
    if WAITING in sys.argv[1:]:
        _wait(loaded)
        del sys.argv[1:]
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
