"""Due times by the server's clock, independent of the controller's."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient

from plumbline.tasks.prefect_client import api


class NoClock:
    """Local clock that a test must not read."""

    @staticmethod
    def now(_: Any) -> None:
        raise AssertionError("the local clock was read")


def test_the_servers_time_is_used(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "datetime", NoClock)
    now = api.server_clock(client)
    assert now().tzinfo is not None
    assert now() <= now()


@pytest.mark.parametrize("headers", [{}, {"date": "soon"}])
def test_the_local_time_is_used_where_the_server_sends_none(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = datetime(2026, 11, 21, tzinfo=UTC)
    monkeypatch.setattr(api, "datetime", SimpleNamespace(now=lambda _: own))
    silent: Any = SimpleNamespace(hello=lambda: SimpleNamespace(headers=headers))
    assert api.server_clock(silent)() >= own
