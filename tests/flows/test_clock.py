"""A training is due by the server's clock: a controller whose own is wrong would plan it for another hour."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient

from tasks import clock


class NoClock:
    """Our own clock, for a test that must not read it."""

    @staticmethod
    def now(_: Any) -> None:
        raise AssertionError("our own clock was read")


def test_the_server_says_what_time_it_is(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "datetime", NoClock)
    now = clock.server_clock(client)
    assert now().tzinfo is not None
    assert now() <= now()


@pytest.mark.parametrize("headers", [{}, {"date": "soon"}])
def test_our_own_where_it_says_nothing_of_use(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = clock.datetime(2026, 11, 21, tzinfo=clock.UTC)
    monkeypatch.setattr(clock, "datetime", SimpleNamespace(now=lambda _: own))
    silent: Any = SimpleNamespace(request=lambda *_: SimpleNamespace(headers=headers))
    assert clock.server_clock(silent)() >= own
