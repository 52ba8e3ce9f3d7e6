"""Unsupported suites are refused before the local stack starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from plumbline.local.stack import Stack
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Suite
from tests.flows.small_suite import small_suite


def suite_of(state: Path, count: int, pool: str = "{name}-local") -> Suite:
    base = small_suite(state, platforms=("onprem",))
    platform: dict[str, Any] = base.platforms["onprem"].model_dump(exclude_none=True)
    names = [f"p{number:02}" for number in range(count)]
    platforms = {name: {**platform, "work_pool": pool.format(name=name)} for name in names}
    return Suite.model_validate({**base.model_dump(exclude_none=True), "reference": "p00", "platforms": platforms})


def test_two_platforms_of_one_pool(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="share a work pool"):
        Stack(suite_of(tmp_path, 2, pool="one-local"), tmp_path, say=print)
