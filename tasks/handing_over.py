"""The place in a process worker where flow runs get their processes, with a spare beside Prefect's own way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio.abc import Process
from prefect.utilities import processutils

from tasks.spare import Spare

__all__ = ["Opener"]


class Opener:
    """Opens a process as Prefect does; for a flow run it takes the one that waits, if there is one."""

    def __init__(self, spare: Spare) -> None:
        self._spare = spare
        self._open = 0
        self._prefects = processutils.open_process

    async def tend(self) -> None:
        """See to the spare, as long as nothing is open."""
        if not self._open:
            await self._spare.tend()

    @asynccontextmanager
    async def open(self, command: list[str], **options: Any) -> AsyncIterator[Process]:
        """The signature of Prefect's `open_process`."""
        self._open += 1
        try:
            waited = await self._spare.take(command, options)
            async with waited or self._prefects(command, **options) as process:
                yield process
        finally:
            self._open -= 1
            self._spare.put_off()
