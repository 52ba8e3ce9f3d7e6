"""Suites with one cron minute on one server: each has its own round, records and verdict."""

from __future__ import annotations

import contextvars
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.flow_engine import run_flow
from prefect.states import Pending, Scheduled

from plumbline.data.stores import open_store
from plumbline.flows.regression import regression
from plumbline.night.central import CentralStore
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.suite import Schedule, Suite
from plumbline.schema.verdict import RoundVerdict
from tests.flows.conftest import Server
from tests.flows.stubs import Material, StubWorkers, deploy_round, suite_of

SCHEDULE = Schedule(cron="0 0 1 1 *")


def next_round(client: SyncPrefectClient, deployment: UUID) -> FlowRun:
    """Return the next run that Prefect's scheduler planned, as a worker takes it.

    The ids of such runs begin with the time at which they were planned; those of other runs are random.
    """
    wanted, deadline = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment])), time.monotonic() + 300
    while not (found := client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_ASC)):
        assert time.monotonic() < deadline, "no run was planned"
        time.sleep(0.5)
    client.set_flow_run_state(found[0].id, Scheduled(scheduled_time=datetime.now(UTC)), force=True)
    client.set_flow_run_state(found[0].id, Pending())  # reserves the suite's one slot
    return found[0]


def verdicts_of(suite: Suite) -> list[RoundVerdict]:
    central = CentralStore(open_store(suite.store))
    return [central.get_round(*name) for name in central.list_rounds(suite.name)]


@pytest.mark.long
def test_suites_of_one_minute_keep_rounds_records_and_verdicts_apart(
    client: SyncPrefectClient, server: Server, material: Material, tmp_path: Path
) -> None:
    # Two share their stores, one has its own; platforms and workloads have the same names everywhere.
    folders = {"at-once-a": tmp_path / "shared", "at-once-b": tmp_path / "shared", "at-once-c": tmp_path / "own"}
    suites = [suite_of(folder, name, 2, retries=0).replace(schedule=SCHEDULE) for name, folder in folders.items()]
    kinds = {"at-once-a": "good", "at-once-b": "other device", "at-once-c": "invalid"}
    deployments: list[UUID] = []
    for suite in suites:
        deploy_round(suite)
        write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
        deployments.append(client.read_deployment_by_name(f"plumbline-regression/{suite.name}").id)
    runs = [next_round(client, deployment) for deployment in deployments]
    due = {run.expected_start_time for run in runs}

    def play(suite: Suite, run: FlowRun) -> Any:
        return run_flow(regression, flow_run=run, parameters={"suite": suite, "round_id": ""}, return_type="state")

    def delete(order: dict[str, Any]) -> dict[str, Any]:
        """Delete the first suite's deployment during its round."""
        if order["platform"] == "p00":
            client.delete_deployment(deployments[0])
        return {}

    with ExitStack() as stubs, ThreadPoolExecutor(len(suites)) as pool:
        for suite in suites:
            behave = lambda platform, _, kind=kinds[suite.name]: kind if platform == "p01" else "good"  # noqa: E731
            work = tmp_path / "work" / suite.name
            measure = delete if suite is suites[0] else lambda _: {}
            stubs.enter_context(StubWorkers(suite, server.api_url, material[1], work, behave, measure=measure))
        begun = [
            pool.submit(contextvars.copy_context().run, play, suite, run)
            for suite, run in zip(suites, runs, strict=True)
        ]
        states = [future.result() for future in begun]
    assert [state.name for state in states] == ["Completed", "Invalid", "Inconclusive"]
    # Also on the server, though the first one's deployment is gone with its slots.
    assert [client.read_flow_run(run.id).state_name for run in runs] == ["Completed", "Invalid", "Inconclusive"]
    found = [verdicts_of(suite) for suite in suites]
    assert [[verdict.verdict for verdict in lot] for lot in found] == [["pass"], ["invalid"], ["inconclusive"]]
    assert len({lot[0].round for lot in found}) == len(suites)
    assert {lot[0].round[:16] for lot in found} == {f"{when:%Y%m%d-%H%M%S}-" for when in due if when is not None}
    records = [name for lot in found for result in lot[0].platforms.values() for name in result.records]
    assert len(records) == len(set(records)) == 4
