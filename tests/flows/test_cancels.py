"""Author of a cancellation, as recorded by the server."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Cancelled, Cancelling, Failed, Running

from plumbline.night.dispatch import ChildState, Job
from plumbline.schema.record import MAX_MESSAGE
from plumbline.tasks.prefect_client.flow_runs import read_children
from plumbline.tasks.prefect_client.orchestrator import PrefectOrchestrator
from plumbline.tasks.prefect_client.platform_apis import PlatformApis

JOB = Job(key="r-aws-w", platform="aws", start_seconds=100, run_seconds=1000, retries=1)


@flow(name="plumbline-training")
def training() -> None: ...


def orchestrator_of(client: SyncPrefectClient, run: UUID) -> PrefectOrchestrator:
    """Return a controller's orchestrator with this run started."""

    def orders(*_: Any) -> Any:
        return None

    orchestrator = PrefectOrchestrator(
        PlatformApis(client, {}), "s", {"aws": "pool"}, start=lambda *_: run, orders=orders, recorded=lambda *_: None
    )
    assert orchestrator.start([(JOB, 0)]) == {(JOB.key, 0): ""}
    return orchestrator


@pytest.mark.parametrize("first", ["person", "controller"])
def test_a_persons_cancel_is_told_from_a_controllers(client: SyncPrefectClient, first: str) -> None:
    run = client.create_flow_run(training, state=Running()).id
    orchestrator = orchestrator_of(client, run)
    if first == "person":
        # As the UI and `prefect flow-run cancel` do.
        client.set_flow_run_state(run, Cancelling())
    orchestrator.cancel([(JOB.key, 0)])
    # The worker that ended it writes words of its own.
    client.set_flow_run_state(run, Cancelled(message="ended by its worker"), force=True)
    child = read_children(client, [run], {})[run]
    assert (child.state, child.by_person) == (ChildState.CANCELLED, first == "person")


def test_a_run_that_ends_without_a_request_has_no_author(client: SyncPrefectClient) -> None:
    run = client.create_flow_run(training, state=Running()).id
    client.set_flow_run_state(run, Cancelled(), force=True)
    assert read_children(client, [run], {})[run].by_person is None


def test_a_workers_message_has_a_bound(client: SyncPrefectClient) -> None:
    """Each worker of an API may write the states of its runs; a round keeps them in its verdict and its alerts."""
    run = client.create_flow_run(training, state=Running()).id
    client.set_flow_run_state(run, Failed(message="x" * 1_000_000), force=True)
    assert len(read_children(client, [run], {})[run].message) == MAX_MESSAGE
