"""Rounds whose process is gone: the watch reads their real states, whatever events the server saw."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed, Failed, Pending, Running

from plumbline.data.stores import open_store
from plumbline.flows.watch import watch
from plumbline.local.stack import Stack
from plumbline.night.central import CentralStore
from plumbline.night.deployment import LOST, REGRESSION, RESUMED, desired
from plumbline.night.rounds import recovery
from plumbline.schema.suite import Alert, Suite
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from plumbline.tasks.prefect_client import deployments
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from plumbline.tasks.watch import check_missed_rounds, recover_rounds
from tests.flows.conftest import file_suite
from tests.flows.stubs import deploy_round
from tests.flows.webhook_server import Receiver, receiver

_RESUMED_SECONDS = 60


def beat(suite: Suite, run_id: UUID) -> None:
    """Emit a heartbeat as Prefect's flow engine does."""
    tags = ["plumbline", f"suite:{suite.name}", "plumbline-round"]
    related = [{"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"} for tag in tags]
    emit_event("prefect.flow-run.heartbeat", {"prefect.resource.id": f"prefect.flow-run.{run_id}"}, related=related)


def start(client: SyncPrefectClient, suite: Suite, name: str, *states: State[Any]) -> UUID:
    """Create a run of the deployed round that has gone through the states."""
    deployed = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}").id
    run = client.create_flow_run_from_deployment(deployed, parameters={"round_id": name}).id
    for state in states:
        client.set_flow_run_state(run, state, force=True)
    return run


def names(client: SyncPrefectClient, run: UUID) -> list[str | None]:
    states = sorted(client.read_flow_run_states(run), key=lambda state: state.timestamp)
    return [state.name for state in states]


@pytest.fixture
def webhook(_settings: None) -> Iterator[Receiver]:
    with receiver("recovery") as item:
        yield item


@pytest.fixture
def paged(suite: Suite, webhook: Receiver) -> Suite:
    """Deploy the suite's round with the webhook as recipient."""
    assert webhook.got == []
    suite = suite.replace(alerts=[Alert(on=("missed",), block="apprise-url/recovery")])
    deploy_round(suite, f"{suite.name}-ctl"[:60])
    return suite


def look(suite: Suite) -> None:
    """Do what the watch does."""
    assert recover_rounds(suite) == []
    check_missed_rounds(suite)


@pytest.mark.long
def test_rounds_outlive_a_restart_of_the_server_with_their_verdict_and_without_a_false_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart the server holds back the events of states whose predecessor it has not seen."""
    monkeypatch.setattr(recovery, "_REPORTED_SECONDS", -5)  # the server says its time to the second
    suite = file_suite(tmp_path, "outlives").replace(alerts=[Alert(on=("missed",), block="apprise-url/outlives")])
    with Stack(suite, tmp_path, say=lambda _: None) as stack, receiver() as hook:
        stack.servers.wait_for_api()
        settings = {PREFECT_API_URL: stack.api_url, PREFECT_API_AUTH_STRING: stack.login}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            AppriseUrl(url=hook.url).save("outlives")
            wanted = [item for item in desired(suite, controllers="ctl") if "plumbline-gate" not in item.name]
            deployments.apply(client, deployments.plan(client, suite.name, wanted))
            passed, crashed = (start(client, suite, name, Pending(), Running()) for name in ("passed", "crashed"))
            os.kill(stack.servers.children["prefect"].process.pid, signal.SIGKILL)
            stack.servers.children["prefect"].process.wait()
            stack.check()
            stack.servers.wait_for_api()
            for run in (passed, crashed):
                beat(suite, run)
            client.set_flow_run_state(passed, Completed())
            client.set_flow_run_state(crashed, Crashed())
            began = time.monotonic()
            while "AwaitingRetry" not in names(client, crashed) and time.monotonic() - began < _RESUMED_SECONDS:
                watch(suite)
                time.sleep(2)
            assert names(client, crashed)[-2:] == ["Crashed", "AwaitingRetry"]
            watch(suite)
            assert names(client, passed)[-2:] == ["Running", "Completed"]
            assert hook.got == []


def test_a_crashed_round_is_resumed_once_and_no_final_state_is_touched(
    client: SyncPrefectClient, paged: Suite, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: tuple[State[Any], ...] = (
        Completed(), Cancelled(), *(Failed(name=name) for name in ("Drift", "Inconclusive", "Invalid", "Misconfigured"))
    )  # fmt: skip
    ended = [start(client, paged, f"r{number}", Running(), state) for number, state in enumerate(ends)]
    crashed = start(client, paged, "crashed", Pending(), Running(), Crashed())
    look(paged)
    assert names(client, crashed)[-1] == "Crashed"  # the worker's second report may still come
    monkeypatch.setattr(recovery, "_REPORTED_SECONDS", -5)  # the server says its time to the second
    for _ in range(3):
        look(paged)
    assert names(client, crashed).count("AwaitingRetry") == 1
    assert client.read_flow_run(crashed).state.message == RESUMED
    assert [names(client, run)[-1] for run in ended] == [state.name for state in ends]
    assert webhook.got == []


@pytest.mark.long
def test_a_round_whose_process_is_gone_without_a_word_is_resumed(
    client: SyncPrefectClient, paged: Suite, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [start(client, paged, "silent", Pending(), Running()), start(client, paged, "pending", Pending())]
    waits = start(client, paged, "waits", Pending(name="InfrastructurePending"))
    look(paged)
    assert [names(client, run)[-1] for run in (*gone, waits)] == ["Running", "Pending", "InfrastructurePending"]
    for limit in ("_SILENT_SECONDS", "_START_SECONDS", "_REPORTED_SECONDS"):
        monkeypatch.setattr(recovery, limit, -5)
    look(paged)  # in one pass: the next one is minutes away
    assert [names(client, run)[-2:] for run in gone] == [["Crashed", "AwaitingRetry"]] * 2
    assert names(client, waits)[-1] == "InfrastructurePending"
    assert webhook.got == []


@pytest.mark.long
def test_a_round_that_crashes_at_every_start_ends_as_its_verdict_or_as_lost_and_alerts_once(
    client: SyncPrefectClient, paged: Suite, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_REPORTED_SECONDS", -5)  # the server says its time to the second
    crashes = [Running(), Crashed(message="killed"), AwaitingRetry(message=RESUMED)] * 4 + [Running(), Crashed()]
    judged, lost = (start(client, paged, name, *crashes) for name in ("judged", "lost"))
    verdict = RoundVerdict(round="judged", suite=paged.name, verdict="drift")
    CentralStore(open_store(paged.store)).put_round(verdict)
    for _ in range(3):
        look(paged)
    assert [names(client, run)[-2:] for run in (judged, lost)] == [["Crashed", "Drift"], ["Crashed", LOST]]
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {paged.name}: a round ended without a verdict"]
    assert "Round lost of" in webhook.got[0]["message"]
    assert "it crashed 5 times, and no process continues it" in webhook.got[0]["message"]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "states",
    [
        pytest.param([Running(), Failed(name="Drift"), Crashed(message="410")], id="crashed over its final state"),
        pytest.param([Running(), Crashed()], id="crashed"),
        pytest.param([Running(), Failed(message="a defect")], id="failed"),
        pytest.param([Running()], id="silent"),
    ],
)
def test_a_run_with_a_stored_verdict_gets_its_state_and_its_alert_once(
    client: SyncPrefectClient,
    paged: Suite,
    webhook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    states: list[State[Any]],
) -> None:
    for limit in ("_SILENT_SECONDS", "_REPORTED_SECONDS"):
        monkeypatch.setattr(recovery, limit, -5)
    paged = paged.replace(alerts=[Alert(on=("missed", "drift"), block="apprise-url/recovery")])
    run = start(client, paged, "judged", *states)
    platforms = {"aws": PlatformResult(verdict="drift", workloads={"tiny": "drift"})}
    verdict = RoundVerdict(round="judged", suite=paged.name, verdict="drift", platforms=platforms)
    CentralStore(open_store(paged.store)).put_round(verdict)
    for _ in range(3):
        look(paged)
    assert names(client, run)[-1] == "Drift"
    assert "AwaitingRetry" not in names(client, run)
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {paged.name}: drift on aws: drift"]


def test_a_round_that_a_defect_ended_is_alerted_once(
    client: SyncPrefectClient, paged: Suite, webhook: Receiver
) -> None:
    run = start(client, paged, "broken", Running(), Failed(message="a defect"))
    for _ in range(2):
        look(paged)
    assert [got["title"] for got in webhook.got] == [f"[plumbline] {paged.name}: a round ended without a verdict"]
    assert "a defect" in webhook.got[0]["message"]
    assert f"/runs/flow-run/{run}" in webhook.got[0]["message"]


@pytest.mark.long
def test_a_resumed_round_without_a_worker_is_lost_and_with_one_it_waits(
    client: SyncPrefectClient, paged: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_UNATTENDED_SECONDS", -5)
    pool = f"{paged.name}-ctl"[:60]
    client.send_worker_heartbeat(pool, "stub", heartbeat_interval_seconds=30)
    run = start(client, paged, "waits", Running(), Crashed(), AwaitingRetry(message=RESUMED))
    look(paged)
    assert names(client, run)[-1] in ("AwaitingRetry", "Late")
    (worker,) = client.read_workers_for_work_pool(pool)
    client.request("DELETE", "/work_pools/{name}/workers/{worker}", path_params={"name": pool, "worker": worker.name})
    look(paged)
    assert names(client, run)[-1] == LOST
