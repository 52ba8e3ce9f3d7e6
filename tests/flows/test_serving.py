"""The local stack's server says when to come again where SQLite refused a request, and only while that helps."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import httpx
import pytest

from plumbline.localstack import Stack
from tasks.serving import ComeAgain


def ask(stack: Stack) -> httpx.Response:
    """A request that reads, then writes."""
    content = {"names": ["tag:any"], "slots": 1, "mode": "concurrency", "lease_duration": 60}
    return httpx.post(f"{stack.api_url}/v2/concurrency_limits/increment-with-lease", json=content, timeout=60)


@pytest.mark.usefixtures("client")
def test_a_request_that_sqlite_refuses_is_asked_for_again_at_once(stack: Stack) -> None:
    database = next(stack.state.rglob("prefect.db"))
    other = sqlite3.connect(database, isolation_level=None, timeout=60)
    try:
        other.execute("BEGIN IMMEDIATE")
        refused = ask(stack)
    finally:
        other.close()
    assert (refused.status_code, refused.headers.get("retry-after")) == (503, "0.1")
    # Another of the server's own writes may come in between again.
    assert 200 in {ask(stack).status_code for _ in range(10)}


def test_the_clients_own_patience_is_left_alone_where_the_trouble_lasts() -> None:
    now = [100.0]

    async def busy(scope: Any, _: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": scope["status"], "headers": [(b"a", b"b")]})

    served = ComeAgain(busy, clock=lambda: now[0])

    def answer(path: str, at: float, status: int = 503) -> list[tuple[bytes, bytes]]:
        now[0] = at
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        asyncio.run(served({"type": "http", "path": path, "status": status}, None, send))  # type: ignore[arg-type]
        return [tuple(each) for each in sent[0]["headers"]]

    def soon(path: str, at: float) -> bytes | None:
        return dict(answer(path, at)).get(b"retry-after")

    assert answer("/flow_runs/1", 100.0) == [(b"a", b"b"), (b"retry-after", b"0.1")]
    assert [soon("/flow_runs/1", at) for at in (100.1, 100.3, 100.7, 101.5)] == [b"0.2", b"0.4", b"0.8", None]
    assert soon("/flow_runs/1", 102.0) is None
    assert soon("/flow_runs/2", 102.0) == b"0.1"
    assert soon("/flow_runs/1", 104.5) == b"0.1"
    assert answer("/flow_runs/3", 104.5, status=200) == [(b"a", b"b")]
