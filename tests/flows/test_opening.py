"""What a flow run is given from outside, by an API call or in Prefect's UI, is looked at before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.regression import regression
from plumbline.errors import ConfigurationError
from plumbline.schema.suite import Suite


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("round_id", ["..", "{root}/elsewhere"])
def test_a_round_id_that_is_a_path_deletes_nothing(suite: Suite, tmp_path: Path, round_id: str) -> None:
    precious = [tmp_path / "elsewhere" / "file", tmp_path / "state" / "baselines" / "file"]
    for file in precious:
        file.parent.mkdir(parents=True)
        file.touch()
    given = round_id.format(root=tmp_path)
    ended = regression(
        suite=suite.model_dump(mode="json"), specs={}, round_id=given, state=str(tmp_path / "state"), return_state=True
    )
    error = ended.result(raise_on_failure=False)
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(f"the flow run's parameters: round_id: {given!r} is no name of a round")
    assert all(file.exists() for file in precious)


def slipped(suite: Suite) -> dict[str, Any]:
    told = suite.model_dump(mode="json")
    told["workloads"]["tiny"]["probe"] = {"steps": "3"}
    return {"suite": told}


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (slipped, ": suite: workloads.tiny.probe.steps: Input should be a valid integer"),
        (lambda suite: {"suite": suite.model_dump(mode="json"), "specs": {"tiny": {}}}, ": specs: tiny."),
        (lambda _: {}, ": give suite_file, or suite"),
    ],
)
def test_a_slip_in_a_parameter_is_named(
    suite: Suite, tmp_path: Path, given: Callable[[Suite], dict[str, Any]], words: str
) -> None:
    ended = regression(**given(suite), round_id="night-1", state=str(tmp_path / "state"), return_state=True)
    error = ended.result(raise_on_failure=False)
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(f"the flow run's parameters{words}")
