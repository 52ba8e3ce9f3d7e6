"""A process that has Prefect loaded and waits for a worker's next flow run, to be that flow run's process."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
from anyio.abc import Process
from prefect.settings import get_current_settings

from tasks.starting import COMMAND, WAITING

__all__ = ["Spare"]

_QUIET_SECONDS = 5.0
"""A worker that has had nothing to do for so long is given its spare: where one run follows another, none is wanted."""
_AGAIN_SECONDS = 60.0
_OPTIONS = {"stdout", "stderr", "env", "cwd"}


class Spare:
    """At most one process in waiting. It ends with its worker, for then its stdin does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._process: Process | None = None
        self._due = clock() + _QUIET_SECONDS

    @property
    def pid(self) -> int | None:
        """Of the process that waits, if one does."""
        return self._process.pid if self._process else None

    def put_off(self) -> None:
        """The worker has something to do, or had just now."""
        self._due = self._clock() + _QUIET_SECONDS

    async def tend(self) -> None:
        """Have a process wait, if it is time for one."""
        if self._process is not None and self._process.returncode is not None:
            await self.close()
            self._due = self._clock() + _AGAIN_SECONDS
        if self._process is None and self._clock() >= self._due:
            # As Prefect makes it for a flow run, but for what is the run's own.
            environment = {**os.environ, **get_current_settings().to_environment_variables(exclude_unset=True)}
            try:
                self._process = await anyio.open_process([*COMMAND, WAITING], env=environment)
            except OSError:  # no memory, no processes left: the worker can do without
                self._due = self._clock() + _AGAIN_SECONDS

    async def take(self, command: list[str], options: dict[str, Any]) -> Process | None:
        """The process that waited, told what to run; None where it is not what was asked for, or has died."""
        piped = options.get("stdout") == options.get("stderr") == subprocess.PIPE
        if command != COMMAND or not piped or set(options) != _OPTIONS or options["cwd"] is None:
            return None
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return None
        order = {"environment": options["env"], "folder": str(options["cwd"])}
        try:
            await process.stdin.send(json.dumps(order).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await process.aclose()
            return None
        return process

    async def close(self) -> None:
        """End the one that waits."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.aclose()
