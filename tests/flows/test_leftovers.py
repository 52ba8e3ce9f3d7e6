"""A new stack on an old database: what was left there is over, and what is under way already is left alone."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.states import Running, Scheduled

from plumbline.localstack import Stack
from plumbline.localstack.leftovers import end_leftovers
from plumbline.localstack.pools import ensure_pool


@flow(name="left-over")
def nothing() -> None: ...


def state_of(client: SyncPrefectClient, run: UUID) -> str:
    state = client.read_flow_run(run).state
    assert state
    return state.type.value


def test_only_what_an_earlier_stack_left_is_ended(client: SyncPrefectClient, stack: Stack) -> None:
    late = client.create_flow_run(nothing, state=Scheduled(scheduled_time=datetime.now(UTC) - timedelta(hours=3))).id
    training = client.create_flow_run(nothing, state=Running()).id
    schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(days=1)), active=True)
    nightly = client.create_deployment(client.create_flow(nothing), "left-over", schedules=[schedule])
    assert client.request("POST", "/deployments/{id}/schedule", path_params={"id": nightly}).is_success
    coming = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[nightly]))
    nights = [run.id for run in client.read_flow_runs(flow_run_filter=coming)]
    assert nights
    before = datetime.now(UTC)
    ours = client.create_flow_run(nothing, state=Running()).id
    assert end_leftovers(stack.api_url, before) >= 2
    assert [state_of(client, run) for run in (late, training, ours)] == ["CRASHED", "CRASHED", "RUNNING"]
    assert {state_of(client, run) for run in nights} == {"SCHEDULED"}
    assert end_leftovers(stack.api_url, before) == 0
    client.delete_deployment(nightly)
    client.set_flow_run_state(ours, Scheduled(), force=True)
    client.delete_flow_run(ours)


def test_a_pool_that_the_controller_made_first_keeps_its_limit_and_learns_the_interpreter(
    client: SyncPrefectClient, stack: Stack
) -> None:
    client.create_work_pool(WorkPoolCreate(name="made-first", type="process", concurrency_limit=3))
    ensure_pool(stack.api_url, "made-first", limit=1)
    pool = client.read_work_pool("made-first")
    assert pool.concurrency_limit == 3
    assert pool.base_job_template["job_configuration"]["command"] == f"{sys.executable} -m tasks.starting"
