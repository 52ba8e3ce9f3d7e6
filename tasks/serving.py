"""`python -m tasks.serving`: Prefect's own server, as the local stack runs it.

On SQLite, Prefect refuses a request that reads and then writes whenever another one has written in between, with 503;
its client comes again after two seconds, for nothing: the other was done within milliseconds. Here the first refusal
says so. Refused again soon after, the client is left to its own patience, which lasts for a minute.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tasks.sweeping import sweep_apart

__all__ = ["ComeAgain", "main"]

_BUSY = 503
_SOON = (b"retry-after", b"0.1")
_SOON_AFTER_SECONDS = 2.0
_MOST_PATHS = 1000
_GRACE_SECONDS = 5
"""For requests and open websockets at the end: without a bound, a server that is stopped waits for its last worker."""


class ComeAgain:
    """An ASGI application that answers as `app` does, and says when to come again, once for each path and trouble."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._refused: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _BUSY and self._is_first(scope):
                message = {**message, "headers": [*message.get("headers", ()), _SOON]}
            await send(message)

        await self._app(scope, receive, told)

    def _is_first(self, scope: Scope) -> bool:
        path, now = scope["path"], self._clock()
        before = self._refused.pop(path, None)
        self._refused[path] = now
        if len(self._refused) > _MOST_PATHS:
            del self._refused[next(iter(self._refused))]
        return before is None or now - before > _SOON_AFTER_SECONDS


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    app = ComeAgain(create_app(final=True))
    sweep_apart()
    level = get_current_settings().server.logging_level.lower()
    uvicorn.run(app, host=args.host, port=args.port, log_level=level, timeout_graceful_shutdown=_GRACE_SECONDS)


if __name__ == "__main__":
    main()
