"""Rounds that are started again: what the command says, and how often."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.states import AwaitingRetry, Cancelled, Crashed, Failed, Pending, Running
from rich.console import Console

from plumbline.cli.display import Display
from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.local.process import start, stop
from plumbline.night.central import CentralStore
from plumbline.night.deployment import RESUMED
from plumbline.night.rounds.documents import Controller, claim_round
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.suite import Alert, Suite
from plumbline.tasks.prefect_client.flow_runs import count_crashes
from plumbline.tasks.prefect_client.round_run import RoundRun
from tests.flows.conftest import Server
from tests.flows.stubs import deploy_round
from tests.flows.webhook_server import receiver


def test_the_command_says_at_once_why_a_run_died(client: SyncPrefectClient, suite: Suite) -> None:
    pool, output = f"{suite.name}-ctl"[:60], StringIO()
    deploy_round(suite, pool)
    client.send_worker_heartbeat(pool, "stub", heartbeat_interval_seconds=30)
    with RoundRun(suite, "r1") as round_run, Display("round r1", Console(file=output, width=200)) as display:
        round_run.start()
        wanted = FlowRunFilter(name=FlowRunFilterName(any_=[f"{suite.name} r1"]))
        (run,) = client.read_flow_runs(flow_run_filter=wanted)
        for age, words in ((60, "ValueError: an earlier one"), (5, "ImportError: the newest one")):
            at = datetime.now(UTC) - timedelta(seconds=age)
            log = LogCreate(name="x", level=40, message=f"Traceback ...\n{words}", timestamp=at, flow_run_id=run.id)
            client.create_logs([log])
        with ThreadPoolExecutor(1) as pool_of_one:
            followed = pool_of_one.submit(copy_context().run, round_run.follow, display)
            client.set_flow_run_state(run.id, Crashed(message="No module named 'plumbline'"), force=True)
            deadline = time.monotonic() + 120
            while "No module named" not in output.getvalue() and time.monotonic() < deadline:
                time.sleep(0.2)
            client.set_flow_run_state(run.id, Failed(name="Lost", message="no process continued it"), force=True)
            followed.result(120)
        with pytest.raises(InconclusiveError, match="no process continued it"):
            round_run.verdict()
    assert output.getvalue().count("the round: Crashed: No module named 'plumbline'") == 1
    assert "ImportError: the newest one" in output.getvalue()


@pytest.mark.long
def test_a_round_whose_every_start_crashed_ends_and_says_so(
    client: SyncPrefectClient, server: Server, suite: Suite, tmp_path: Path
) -> None:
    pool, name = f"{suite.name}-ctl", "20261124-020000-crashes"
    suite = suite.replace(alerts=[Alert(on=("missed",), block="apprise-url/crashes")])
    with receiver("crashes") as webhook:
        deploy_round(suite, pool)
        deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
        run = client.create_flow_run_from_deployment(deployed.id, parameters={"round_id": name})
        for number in range(1, 5):
            for state in (Pending(), Running(), Crashed(), AwaitingRetry(message=RESUMED)):
                client.set_flow_run_state(run.id, state, force=True)
            claim_round(
                CentralStore(open_store(suite.store)), suite.name, name, Controller(flow_run=str(run.id), start=number)
            )
        assert count_crashes(run.id) == 4
        by_hand = client.create_flow_run_from_deployment(deployed.id)
        for state in (Running(), Crashed(), AwaitingRetry(message=RESUMED), Running(), Crashed(), AwaitingRetry()):
            client.set_flow_run_state(by_hand.id, state, force=True)
        assert count_crashes(by_hand.id) == 0  # a person's retry
        client.set_flow_run_state(by_hand.id, Cancelled(), force=True)
        worker = start(
            pool, services.worker_command(pool, pool, limit=None), log=tmp_path / "worker.log",
            environment=server.environment(tmp_path / "home"), folder=tmp_path / "empty",
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 300
            while not (state := client.read_flow_run(run.id).state) or not state.is_final():
                assert time.monotonic() < deadline, f"{state}: {worker.last_lines()}"
                time.sleep(0.5)
        finally:
            stop([worker], grace_seconds=10)
    assert (state.name, state.message) == (
        "Inconclusive", "the controller crashed 4 times (hint: see the log of its worker)",
    )  # fmt: skip
    # Nothing is said about the crashes themselves.
    assert ["the controller crashed 4 times" in message["message"] for message in webhook.got] == [True]
