"""The server's clock: due times follow it, and the doctor compares it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient

from plumbline.tasks.prefect_client.api import read_clock, server_clock


def dated(seconds: float) -> str:
    """Return a Date header that differs from this machine's clock."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


class Server:
    """Server whose answers have these Date headers, in turn."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    def hello(self) -> Any:
        return SimpleNamespace(headers=httpx.Headers([("date", value) for value in self.answers.pop(0)]))


def read(*answers: list[str]) -> tuple[float | None, list[float]]:
    """Return the difference that is read, in whole seconds, and the waits."""
    waits: list[float] = []
    server: Any = Server(*answers)
    reading = read_clock(server, waits.append)
    assert not server.answers, "the server was not asked again"
    return None if reading is None else round(reading.difference_seconds / 10) * 10, waits


def test_prefects_server_sends_its_time(client: SyncPrefectClient) -> None:
    reading = read_clock(client)
    assert reading.difference_seconds < 10


def test_a_server_whose_clock_is_an_hour_off_decides_when_a_run_is_due() -> None:
    server: Any = Server([dated(-3600)], [dated(-3600)])
    difference = datetime.now(UTC) - server_clock(server, lambda _: None)()
    assert 3590 < difference.total_seconds() < 3610


@pytest.mark.parametrize("headers", [[], ["soon"]])
def test_the_local_time_is_used_where_the_server_sends_none(headers: list[str]) -> None:
    before = datetime.now(UTC)
    server: Any = Server(headers)
    assert before <= server_clock(server)() <= datetime.now(UTC)
    assert read(headers) == (None, [])


def test_a_stale_date_of_a_busy_server_is_read_again() -> None:
    assert read([dated(-50)], [dated(0)]) == (0, [2.0])
    assert read([dated(-50)], [dated(-50)]) == (50, [2.0]), "a clock that is wrong stays wrong"


def test_of_a_proxys_date_and_the_servers_the_closer_one_counts() -> None:
    assert read([dated(-50), dated(0)]) == (0, [])
    assert read([f"{dated(0)}, {dated(-50)}"]) == (0, [])
