"""`python -m tasks.serving`: Prefect's own server, as the local stack runs it.

On SQLite, Prefect refuses a request that reads and then writes whenever another one has written in between, with 503;
its client comes again after two seconds, then after four: for nothing, the other was done within milliseconds. Here the
first refusals say so. Refused once more, the client is left to its own patience, which lasts for most of a minute.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.noting import note_sparingly
from tasks.sweeping import sweep_apart

__all__ = ["ComeAgain", "main"]

_BUSY = 503
_SOON = (b"0.1", b"0.2", b"0.4", b"0.8")
"""Of the six retries of the stack's clients the first four; the last two wait for 32 and 64 s."""
_SOON_AFTER_SECONDS = 2.0
_MOST_PATHS = 1000
_GRACE_SECONDS = 5
"""For requests and open websockets at the end: without a bound, a server that is stopped waits for its last worker."""


class ComeAgain:
    """An ASGI application that answers as `app` does, and says when to come again, a few times for each trouble."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._refused: dict[str, tuple[int, float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _BUSY:
                message = {**message, "headers": [*message.get("headers", ()), *self._soon(scope["path"])]}
            await send(message)

        await self._app(scope, receive, told)

    def _soon(self, path: str) -> list[tuple[bytes, bytes]]:
        """The header, while it helps: a database that stays locked needs the client's own waits."""
        now = self._clock()
        times, last = self._refused.pop(path, (0, -math.inf))
        times = times if now - last <= _SOON_AFTER_SECONDS else 0
        self._refused[path] = (times + 1, now)
        if len(self._refused) > _MOST_PATHS:
            del self._refused[next(iter(self._refused))]
        return [(b"retry-after", _SOON[times])] if times < len(_SOON) else []


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    app = create_app(final=True)
    note_sparingly(vars(app)["api_app"])
    sweep_apart()
    level = get_current_settings().server.logging_level.lower()
    uvicorn.run(
        ComeAgain(app), host=args.host, port=args.port, log_level=level, timeout_graceful_shutdown=_GRACE_SECONDS
    )


if __name__ == "__main__":
    main()
