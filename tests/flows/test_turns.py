"""Whose turn it is, as the server has it: by when a round began, however often its controller was started."""

from __future__ import annotations

from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Running

from plumbline.rounds import Round
from plumbline.schema.suite import Suite
from tasks.controllers import round_tags
from tasks.taking_turns import _ahead


@flow(name="regression")
def controller(round_id: str = "") -> None: ...


@pytest.mark.parametrize(("ours", "ahead"), [("first", set()), ("second", {"run of first"})])
def test_a_round_whose_controller_was_started_again_keeps_its_place(
    client: SyncPrefectClient, suite: Suite, monkeypatch: pytest.MonkeyPatch, ours: str, ahead: set[str]
) -> None:
    suite = suite.replace(name=f"{suite.name[:30]}-{ours}")
    runs: dict[str, UUID] = {}
    created: list[UUID] = []
    # The first round's controller was killed, which the server does not know, and started again after the second began.
    for name in ("first", "second", "first"):
        runs[name] = client.create_flow_run(
            controller, parameters={"round_id": name}, name=f"run of {name}", tags=round_tags(suite.name),
            state=Running(),
        ).id  # fmt: skip
        created.append(runs[name])
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(runs[ours]))
    for _ in range(2):
        assert set(_ahead(client, Round(ours, suite, {}))) == ahead
    # The killed one is no longer held for running once its successor has looked, and still keeps the place.
    states = [run.state.type.value for one in created if (run := client.read_flow_run(one)).state]
    assert states == ["CRASHED" if ours == "first" else "RUNNING", "RUNNING", "RUNNING"]
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(runs["second"]))
    assert set(_ahead(client, Round("second", suite, {}))) == {"run of first"}
