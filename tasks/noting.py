"""That a worker has asked for work, written down now and then instead of every time.

Of each poll Prefect's server notes, in two jobs of its background worker, that the queue and its deployments are
served: more than half of what a poll costs, and two transactions on SQLite, each of which may have another request
refused. It takes a queue for deserted when nothing was noted for a minute.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from docket import Docket
from fastapi import FastAPI, Request
from prefect.server.api.dependencies import docket as of_prefect
from prefect.server.models.deployments import mark_deployments_ready
from prefect.server.models.work_queues import mark_work_queues_ready

__all__ = ["Sparing", "note_sparingly"]

_POLLS = (mark_deployments_ready, mark_work_queues_ready)
_NOTED_SECONDS = 10.0


async def _done_lately(*_: object, **__: object) -> None:
    """In the place of a job that was done a moment ago."""


class Sparing:
    """A docket that takes the same poll down once in ten seconds; every other job as it comes."""

    def __init__(self, docket: Docket, clock: Callable[[], float] = time.monotonic) -> None:
        self._docket = docket
        self._clock = clock
        self._noted: dict[str | None, float] = {}

    def add(self, function: Any, when: Any = None, key: str | None = None) -> Callable[..., Awaitable[Any]]:
        """As `Docket.add`."""
        if function in _POLLS:
            now = self._clock()
            if now - self._noted.get(key, -_NOTED_SECONDS) < _NOTED_SECONDS:
                return _done_lately
            self._noted[key] = now
        return self._docket.add(function, when=when, key=key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._docket, name)


def note_sparingly(app: FastAPI) -> None:
    """Have the server's API use such a docket; `app` is the API's own, not the one that it is mounted on."""
    dockets: dict[Docket, Sparing] = {}

    def docket(request: Request) -> Sparing:
        real = of_prefect(request)
        return dockets.setdefault(real, Sparing(real))

    app.dependency_overrides[of_prefect] = docket
