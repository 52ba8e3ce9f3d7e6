"""Whose turn it is, as the server has it: by when a round first ran, however often its controller was started."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled, Running, Scheduled, State

from plumbline.errors import UnavailableError
from plumbline.rounds import Round
from plumbline.schema.suite import Dispatch, Suite
from tasks.tagging import round_tags
from tasks.taking_turns import _ahead, take_turn
from tasks.vanished import check_vanished


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


def test_a_nightly_round_that_prefect_created_days_ahead_does_not_overtake_the_one_that_runs(
    client: SyncPrefectClient, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(name: str, state: State[None]) -> UUID:
        tags = round_tags(suite.name)
        return client.create_flow_run(controller, parameters={"round_id": name}, name=name, tags=tags, state=state).id

    def ahead(run: UUID, name: str) -> set[str]:
        monkeypatch.setenv("PREFECT__FLOW_RUN_ID", str(run))
        return set(_ahead(client, Round(name, suite, {})))

    nightly = create("nightly", Scheduled(scheduled_time=datetime.now(UTC) + timedelta(days=3)))
    # Cancelled before it ran, it has a start in Prefect's books, and is no reason to let its round pass.
    client.set_flow_run_state(create("nightly", Scheduled()), Cancelled(), force=True)
    upgrade = create("upgrade", Running())
    assert ahead(upgrade, "upgrade") == set()
    client.set_flow_run_state(nightly, Running(), force=True)
    assert ahead(upgrade, "upgrade") == set()
    assert ahead(nightly, "nightly") == {"upgrade"}
    refusing = suite.replace(dispatch=Dispatch(overlap="refuse"))
    with pytest.raises(UnavailableError, match="upgrade runs already"):
        take_turn(Round("nightly", refusing, {}))


def test_a_controller_whose_machine_is_gone_is_called_crashed_and_one_that_lives_is_not(
    client: SyncPrefectClient, suite: Suite
) -> None:
    suite = suite.replace(name=f"{suite.name[:30]}-power")
    runs, hearts = {}, {}
    for name in ("gone", "lives"):
        runs[name] = client.create_flow_run(controller, name=name, tags=round_tags(suite.name), state=Running()).id
        # One of each time that Prefect started it; the last one beats.
        for _ in range(6):
            heart = ArtifactCreate(type="progress", data=10.0, flow_run_id=runs[name])
            hearts[name] = client.create_artifact(heart).id
    assert check_vanished.fn(suite, sleep=lambda _: pytest.fail("nobody is silent")) == []
    later = datetime.now(UTC) + timedelta(hours=1)

    def beat(_: float) -> None:
        client.update_artifact(hearts["lives"], ArtifactUpdate(data=11.0))

    assert check_vanished.fn(suite, later, beat) == ["gone"]
    states = {name: client.read_flow_run(run).state_type for name, run in runs.items()}
    assert states == {"gone": StateType.CRASHED, "lives": StateType.RUNNING}
