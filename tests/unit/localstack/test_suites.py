"""Unsupported suites are refused before the local stack starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumbline.errors import ConfigurationError
from plumbline.localstack import Stack
from plumbline.localstack.servers import DATABASE_URL
from plumbline.schema.suite import Suite
from tests.flows.small_suite import small_suite


def suite_of(state: Path, count: int, pool: str = "{name}-local") -> Suite:
    base = small_suite(state, platforms=("onprem",))
    platform: dict[str, Any] = base.platforms["onprem"].model_dump(exclude_none=True)
    names = [f"p{number:02}" for number in range(count)]
    platforms = {name: {**platform, "work_pool": pool.format(name=name)} for name in names}
    return Suite.model_validate({**base.model_dump(exclude_none=True), "reference": "p00", "platforms": platforms})


def test_too_many_platforms_for_sqlite_would_hang_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATABASE_URL, raising=False)
    with pytest.raises(ConfigurationError, match="16 platforms, but a local stack on SQLite supports 15") as error:
        Stack(suite_of(tmp_path, 16), tmp_path, say=print)
    assert f"set {DATABASE_URL} to a PostgreSQL database" in str(error.value)
    Stack(suite_of(tmp_path, 15), tmp_path, say=print)
    monkeypatch.setenv(DATABASE_URL, "postgresql+asyncpg://prefect@127.0.0.1/prefect")
    Stack(suite_of(tmp_path, 16), tmp_path, say=print)
    assert not list(tmp_path.iterdir())


def test_two_platforms_of_one_pool(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="share a work pool"):
        Stack(suite_of(tmp_path, 2, pool="one-local"), tmp_path, say=print)
