"""Commands that start a round wait for a server that restarts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.local.servers import reserve_port
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.tasks.prefect_client.api import wait_for_api
from plumbline.tasks.prefect_client.round_run import RoundRun
from tests.flows.stubs import suite_of
from tests.http_server import Handler

ANSWERS = {"/api/health": True, "/api/hello": "hello", "/api/admin/version": "3.8.8"}


class RestartingServer:
    """HTTP server that refuses connections until `start`; `stops_at` ends it in the middle of a request."""

    def __init__(self) -> None:
        self.port = reserve_port()
        self.asked: list[str] = []
        self.stops_at = ""
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.block_on_close = False  # `stop` is called from a request
        Thread(target=self._server.serve_forever, args=(0.01,)).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Answering(Handler):
            def answer(self) -> None:
                outer.asked.append(self.path)
                if outer.stops_at and self.path.startswith(outer.stops_at):
                    outer.stops_at = ""
                    self.close_connection = True
                    outer.stop()
                    return
                body = json.dumps(ANSWERS.get(self.path, {"detail": "Not Found"})).encode()
                self.reply(200 if self.path in ANSWERS else 404, body, {"Content-Type": "application/json"})

        return Answering


@pytest.fixture
def server() -> Iterator[RestartingServer]:
    restarting = RestartingServer()
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{restarting.port}/api"}):
        yield restarting
    restarting.stop()


def starting_on_first_line(server: RestartingServer) -> tuple[list[str], Callable[[str], None]]:
    """Start the server once the command says that it waits: before, it has met a refused connection."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        server.start()

    return lines, say


def test_a_server_that_starts_late_is_waited_for_with_one_line(server: RestartingServer) -> None:
    lines, say = starting_on_first_line(server)
    wait_for_api(30.0, say)
    (line,) = lines
    assert line.startswith(f"http://127.0.0.1:{server.port}/api: no answer: ")
    assert "Connection refused" in line
    assert line.endswith("waiting for at most 30 s")


def test_a_server_that_stays_away_is_given_up(server: RestartingServer) -> None:
    with pytest.raises(UnavailableError, match="no answer"):
        wait_for_api(0.0)
    assert server.asked == []


def test_a_round_starts_though_the_server_restarts_between_its_requests(
    server: RestartingServer, tmp_path: Path
) -> None:
    server.stops_at = "/api/deployments/name/"
    server.start()
    lines, say = starting_on_first_line(server)
    suite = suite_of(tmp_path, "restarts", 1)
    # The second server knows no deployment: the request was repeated there.
    with RoundRun(suite, "r1") as run, pytest.raises(ConfigurationError, match="is not deployed"):
        run.start(say)
    assert len(lines) == 1
    assert len([path for path in server.asked if path.startswith("/api/deployments/name/")]) == 2
