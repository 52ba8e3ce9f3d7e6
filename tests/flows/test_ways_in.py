"""The ways in that need a Prefect server that is there already: `plumbline run --api`, and `prefect deploy`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName
from prefect.exceptions import ObjectAlreadyExists

from plumbline.bundles import has_record
from plumbline.deploying import desired
from plumbline.dispatch import TrainingOrder
from plumbline.localstack import Stack, services
from plumbline.localstack.process import start, stop
from plumbline.schema.suite import read_suite
from plumbline.stores import open_store
from tasks import deploying
from tests.flows.ground import to_toml
from tests.flows.stubs import Material, StubWorkers, suite_of

ROOT = Path(__file__).resolve().parents[2]
SUITE = "deployments/suites/cross-cloud.toml"


def environment(stack: Stack, **more: str) -> dict[str, str]:
    return {**services.inherited(), **services.prefect_environment(stack.api_url, stack.state / "cli"), **more}


def run(stack: Stack, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=environment(stack), cwd=folder, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def test_a_round_on_a_server_that_is_there(
    client: SyncPrefectClient, stack: Stack, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "by-api", 2)
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = ["plumbline", "run", str(path), "--api", "--json"]
    with StubWorkers(suite, stack.api_url, material[1], tmp_path / "work"):
        early = run(stack, tmp_path, *command)
        assert (early.returncode, early.stdout) == (2, "")
        assert "no recipe was published yet" in early.stderr
        # Off a terminal too, its first line says what `--round` asks for.
        assert re.fullmatch(r" +\d+\.\d s  round \d{8}-\d{6}-[0-9a-f]{6}", early.stderr.splitlines()[0])
        done = run(stack, tmp_path, *command, "--prepare")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert {name: one["verdict"] for name, one in verdict["platforms"].items()} == {"p00": "pass", "p01": "pass"}
    ours = FlowRunFilter(name=FlowRunFilterName(any_=[f"by-api {verdict['round']}"]))
    assert [one.state.type.value for one in client.read_flow_runs(flow_run_filter=ours) if one.state] == ["COMPLETED"]
    # What the command left behind is the round's own folder, and no server of its own.
    assert not (tmp_path / ".plumbline" / "prefect").exists()


@pytest.fixture
def deployed(client: SyncPrefectClient, stack: Stack) -> subprocess.CompletedProcess[str]:
    """`deployments/prefect.yaml`, by Prefect's own command; taken away again, for it has schedules and triggers."""
    suite = read_suite(ROOT / SUITE)
    for pool in ("plumbline", *(platform.work_pool for platform in suite.platforms.values())):
        # As they are where clouds are: with Prefect's own template, and its own way to start a flow run.
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    command = ["prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"]
    yield run(stack, ROOT, *command)
    for one in client.read_deployments(limit=200):
        if "suite:cross-cloud" in one.tags:
            client.delete_deployment(one.id)


def test_the_file_for_prefect_deploy_makes_what_plumbline_deploy_makes_and_it_runs(
    client: SyncPrefectClient, stack: Stack, material: Material, tmp_path: Path,
    deployed: subprocess.CompletedProcess[str],
) -> None:  # fmt: skip
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    suite = read_suite(ROOT / SUITE)
    wanted = [one for one in desired(suite, SUITE, controllers="plumbline") if one.kind == "deployment"]
    changes = deploying.plan(client, suite.name, wanted)
    made = {change.item.name: change.verb for change in changes if change.item.kind == "deployment"}
    trainings = [f"training/cross-cloud-{name}" for name in PLATFORMS]
    assert made == dict.fromkeys(["regression/cross-cloud", "watch/cross-cloud", *trainings], "keep")
    # One of them, on a real worker of its pool, as a controller dispatches it.
    order = TrainingOrder(
        platform="aws", data=f"file://{material[1].parents[1]}/onprem/data", outbox=f"file://{tmp_path}/outbox",
        record_id="by-prefect-deploy", round_id="r", spec=material[0], run_seconds=60,
    )  # fmt: skip
    run_id = client.create_flow_run_from_deployment(
        client.read_deployment_by_name("training/cross-cloud-aws").id, parameters={"order": order.to_json()}
    ).id
    worker = start(
        "worker", services.worker_command("aws-gpu", "by-prefect-deploy"), log=tmp_path / "worker.log",
        environment=environment(stack, PLUMBLINE_CACHE=str(tmp_path / "cache")), folder=tmp_path,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while (state := client.read_flow_run(run_id).state) is None or not state.is_final():
            assert time.monotonic() < deadline, worker.log.read_text(encoding="utf-8")
            time.sleep(0.2)
    finally:
        stop([worker], grace_seconds=10)
    assert state.is_completed(), worker.log.read_text(encoding="utf-8")
    assert has_record(open_store(order.outbox), order.record_id)


PLATFORMS = ("aws", "azure", "gcp")
