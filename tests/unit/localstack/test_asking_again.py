"""A Prefect server that has just come up on a busy machine: it hangs or refuses for a while, and is asked again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.error import HTTPError

import pytest

from plumbline.localstack.leftovers import end_leftovers
from plumbline.localstack.pools import ensure_pool


class Server(ThreadingHTTPServer):
    answers: list[tuple[int, bytes]]
    asked: int = 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        code, body = self.server.answers[min(self.server.asked, len(self.server.answers) - 1)]
        self.server.asked += 1
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PATCH = do_POST  # noqa: N815 - the name that its base looks for

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.mark.parametrize("last", [[(201, b"{}")], [(409, b"{}"), (500, b"database is locked"), (204, b"")]])
def test_a_pool_is_made_or_changed_once_the_server_can(server: Server, last: list[tuple[int, bytes]]) -> None:
    server.answers = [(500, b"database is locked"), (503, b""), *last]
    ensure_pool(f"http://127.0.0.1:{server.server_port}/api", "aws-local")
    assert server.asked == len(server.answers)


def test_a_refusal_is_not_repeated(server: Server) -> None:
    server.answers = [(422, b"{}")]
    with pytest.raises(HTTPError):
        ensure_pool(f"http://127.0.0.1:{server.server_port}/api", "no/name")
    assert server.asked == 1


def test_leftovers_are_asked_for_again(server: Server) -> None:
    server.answers = [(500, b""), (200, b"[]")]
    assert end_leftovers(f"http://127.0.0.1:{server.server_port}/api", datetime.now(UTC)) == 0
    assert server.asked == 2
