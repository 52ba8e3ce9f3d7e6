"""Rounds restarted by Prefect's automations."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events import emit_event
from prefect.states import AwaitingRetry, Crashed, Pending, Running

from plumbline.central import CentralStore
from plumbline.deployment import desired, items
from plumbline.localstack import services
from plumbline.localstack.process import start, stop
from plumbline.localstack.stack import Stack
from plumbline.rounds.claim import Controller, claim_round
from plumbline.schema.suite import Alert, Suite
from plumbline.stores import open_store
from plumbline.tasks.prefect_client import deployments
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from tests.flows.stubs import deploy_round
from tests.flows.webhook_server import receiver

_WITHIN_SECONDS = 110
_AGAIN_SECONDS = 30
"""The server takes up a new automation in its own time: before, it does not see that the run is pending."""


def test_a_round_whose_worker_died_before_its_start_is_scheduled_again(
    client: SyncPrefectClient, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_START_SECONDS", 10)
    monkeypatch.setattr(items, "_REPEATED_SECONDS", 10)
    deployments.apply(client, deployments.plan(client, suite.name, desired(suite, controllers="ctl")))
    deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    run = client.create_flow_run_from_deployment(deployed.id)
    began, pending_at, names = time.monotonic(), -_AGAIN_SECONDS, []
    while "AwaitingRetry" not in names and time.monotonic() - began < _WITHIN_SECONDS:
        if "Crashed" not in names and time.monotonic() - began - pending_at > _AGAIN_SECONDS:
            pending_at = time.monotonic() - began
            client.set_flow_run_state(run.id, Pending(), force=True)
        time.sleep(0.5)
        states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
        names = [state.name for state in states]
    # A Pending of this test may come between the two.
    assert names[-1:] == ["AwaitingRetry"]
    assert "Crashed" in names


def test_a_round_whose_heartbeats_end_is_scheduled_again(
    client: SyncPrefectClient, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "_SILENT_SECONDS", 10)
    monkeypatch.setattr(items, "_REPEATED_SECONDS", 10)
    deploy_round(suite)
    deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    run = client.create_flow_run_from_deployment(deployed.id)
    for state in (Pending(), Running()):
        client.set_flow_run_state(run.id, state)
    # As Prefect's flow engine emits it; the server takes up a new automation in its own time.
    tags = ["plumbline", f"suite:{suite.name}", "plumbline-round"]
    related = [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in tags]
    for _ in range(6):
        emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{run.id}"}, related=related)
        time.sleep(2)
    assert client.read_flow_run(run.id).state_type is StateType.RUNNING
    began, names = time.monotonic(), []
    while "AwaitingRetry" not in names and time.monotonic() - began < _WITHIN_SECONDS:
        time.sleep(0.5)
        states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
        names = [state.name for state in states]
    assert names[-3:] == ["Running", "Crashed", "AwaitingRetry"]


def test_a_crash_that_is_reported_twice_restarts_the_round_once(
    client: SyncPrefectClient, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner reports a killed process first, the worker a few seconds later."""
    monkeypatch.setattr(items, "_REPEATED_SECONDS", 10)
    deploy_round(suite)
    deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    began, names, tries = time.monotonic(), [], 0
    while "AwaitingRetry" not in names and time.monotonic() - began < _WITHIN_SECONDS:
        # The server takes up a new automation in its own time: before, it misses the crash.
        tries += 1
        run = client.create_flow_run_from_deployment(deployed.id)
        for state in (Pending(), Running(), Crashed()):
            client.set_flow_run_state(run.id, state, force=True)
        time.sleep(3)
        client.set_flow_run_state(run.id, Crashed(), force=True)
        time.sleep(12 + 4 * tries)
        states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
        names = [state.name for state in states]
    assert names[-1] == "AwaitingRetry"
    assert names.count("AwaitingRetry") == 1


def test_a_round_whose_every_start_crashed_ends_and_says_so(
    client: SyncPrefectClient, stack: Stack, suite: Suite, tmp_path: Path
) -> None:
    pool, name = f"{suite.name}-ctl", "20261124-020000-crashes"
    suite = suite.replace(alerts=[Alert(on=("missed",), block="apprise-url/crashes")])
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = {**services.inherited(), **services.prefect_environment(stack.api_url, tmp_path / "home"), **path}
    with receiver() as webhook:
        AppriseUrl(url=webhook.url).save("crashes", overwrite=True)
        deploy_round(suite, pool)
        deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
        run = client.create_flow_run_from_deployment(deployed.id, parameters={"round_id": name})
        for number in range(1, 5):
            for state in (Pending(), Running(), Crashed(), AwaitingRetry()):
                client.set_flow_run_state(run.id, state, force=True)
            claim_round(CentralStore(open_store(suite.store)), name, Controller(flow_run=str(run.id), start=number))
        worker = start(
            pool, services.worker_command(pool, pool, limit=None), log=tmp_path / "worker.log",
            environment=environment, folder=tmp_path / "empty",
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not (state := client.read_flow_run(run.id).state) or not state.is_final():
                assert time.monotonic() < deadline, f"{state}: {worker.last_line()}"
                time.sleep(0.5)
        finally:
            stop([worker], grace_seconds=10)
    assert (state.name, state.message) == (
        "Inconclusive", "the controller crashed 4 times (hint: see the log of its worker)",
    )  # fmt: skip
    # Prefect's automation alerts about the crashes themselves.
    assert sum("the controller crashed 4 times" in message["message"] for message in webhook.got) == 1
