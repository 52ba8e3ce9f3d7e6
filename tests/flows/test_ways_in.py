"""`plumbline run --api`, `plumbline deploy` and `prefect deploy` on a running server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from plumbline.localstack import services
from plumbline.localstack.process import start, stop
from plumbline.localstack.stack import Stack
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.deployments import observe
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from tests.flows.small_suite import to_toml
from tests.flows.stubs import Material, StubWorkers, suite_of

ROOT = Path(__file__).resolve().parents[2]


def environment(stack: Stack, **more: str) -> dict[str, str]:
    # The commands of the installation, as in an activated environment.
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return {**services.inherited(), **services.prefect_environment(stack.api_url, stack.state / "cli"), **path, **more}


def run(stack: Stack, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments], env=environment(stack), cwd=folder, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def test_a_round_on_a_server_of_the_teams(
    client: SyncPrefectClient, stack: Stack, material: Material, tmp_path: Path
) -> None:
    suite = suite_of(tmp_path, "by-api", 2)
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = ["plumbline", "run", str(path), "--api", "--json"]
    undeployed = run(stack, tmp_path, *command)
    assert (undeployed.returncode, json.loads(undeployed.stdout)["verdict"]) == (2, None)
    assert "plumbline-regression/by-api: is not deployed (hint: plumbline deploy SUITE)" in undeployed.stderr
    assert run(stack, tmp_path, "plumbline", "deploy", str(path), "--controllers", "by-api-ctl").returncode == 0
    with StubWorkers(suite, stack.api_url, material[1], tmp_path / "work"), controllers(stack, tmp_path, "by-api-ctl"):
        early = run(stack, tmp_path, *command)
        assert (early.returncode, json.loads(early.stdout)["exit_code"]) == (2, 2)
        assert "no spec was published yet" in early.stderr
        # Off a terminal too, its first line says what `--round` asks for.
        assert re.fullmatch(r" +\d+\.\d s  round \d{8}-\d{6}-[0-9a-f]{6}", early.stderr.splitlines()[0])
        done = run(stack, tmp_path, *command, "--prepare")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert {name: item["verdict"] for name, item in verdict["platforms"].items()} == {"p00": "pass", "p01": "pass"}
    ours = FlowRunFilter(name=FlowRunFilterName(any_=[f"by-api {verdict['round']}"]))
    assert [item.state.type.value for item in client.read_flow_runs(flow_run_filter=ours) if item.state] == [
        "COMPLETED"
    ]
    # What the command left behind is what it has built, and no server of its own.
    assert not (tmp_path / ".plumbline" / "prefect").exists()


@contextmanager
def controllers(stack: Stack, folder: Path, pool: str) -> Iterator[None]:
    """Start a stock worker of the controllers' pool in an empty folder."""
    worker = start(
        "controllers", services.worker_command(pool, pool, limit=None), log=folder / "controllers.log",
        environment=environment(stack), folder=folder / "empty",
    )  # fmt: skip
    try:
        yield
    finally:
        stop([worker], grace_seconds=10)


FULL = {
    "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"},
    "alerts": [{"on": ["drift", "missed"], "block": "apprise-url/both-ways"}],
}


def everything(client: SyncPrefectClient, suite: Suite) -> list[dict[str, Any]]:
    """Return the server's objects of the suite, without ids and times."""
    pools = sorted({platform.work_pool for platform in suite.platforms.values()} | {"plumbline"})
    items = observe(client, suite.name, pools, ["apprise-url/both-ways"])
    held = [{"kind": item.kind, "name": item.name, "fields": item.fields, "initial": item.initial} for item in items]
    for one in client.read_deployments(limit=200):
        if f"suite:{suite.name}" in one.tags:
            what = ("parameter_openapi_schema", "enforce_parameter_schema", "pull_steps", "paused", "path")
            held.append({"name": one.name, **{key: getattr(one, key) for key in what}})
            held[-1]["schedules"] = [(each.active, each.schedule.model_dump()) for each in one.schedules]
    held += [
        {
            "name": automation.name,
            "description": automation.description,
            "enabled": automation.enabled,
            "trigger": automation.trigger.model_dump(exclude={"id"}),
        }
        for automation in client.read_automations()
        if automation.name.startswith(f"plumbline {suite.name}: ")
    ]
    return sorted(held, key=lambda one: json.dumps(one, default=str, sort_keys=True))


def take_away(client: SyncPrefectClient, suite: Suite) -> None:
    for item in client.read_automations():
        if item.name.startswith(f"plumbline {suite.name}: "):
            client.delete_automation(item.id)
    for item in client.read_deployments(limit=200):
        if f"suite:{suite.name}" in item.tags:
            client.delete_deployment(item.id)
    for platform in suite.platforms.values():
        client.delete_work_pool(platform.work_pool)


def test_prefect_deploy_gives_what_plumbline_deploy_gives_item_by_item(
    client: SyncPrefectClient, stack: Stack, tmp_path: Path
) -> None:
    AppriseUrl(url="json://127.0.0.1:9/").save("both-ways", overwrite=True)
    suite = suite_of(tmp_path, "both-ways", 2).replace(**FULL)
    path = tmp_path / "suite.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    # From another folder, with a relative path.
    (tmp_path / "elsewhere").mkdir()
    ours = run(stack, tmp_path / "elsewhere", "plumbline", "deploy", "../suite.toml")
    assert ours.returncode == 0, ours.stderr
    by_us = everything(client, suite)
    take_away(client, suite)
    written = run(stack, tmp_path, "plumbline", "deploy", "suite.toml", "--write-prefect-yaml", "prefect.yaml")
    assert written.returncode == 0, written.stderr
    # As the file itself says: first the pools, then all deployments.
    header = (tmp_path / "prefect.yaml").read_text(encoding="utf-8").splitlines()
    for line in header:
        if line.startswith("#   prefect ") and "--type" in line and line.split()[4] != "plumbline":
            done = run(stack, tmp_path, *line.removeprefix("#   ").split())
            assert done.returncode == 0, done.stdout + done.stderr
    for line in header:
        if line.startswith("#   prefect ") and "set-concurrency-limit" in line:
            assert run(stack, tmp_path, *line.removeprefix("#   ").split()).returncode == 0
    (command,) = [line for line in header if "deploy --all" in line]
    done = run(stack, tmp_path, *command.removeprefix("#   ").replace("FILE", "prefect.yaml").split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert everything(client, suite) == by_us
    assert len([item for item in by_us if item.get("kind") == "automation"]) == 5
    again = run(stack, tmp_path, "plumbline", "deploy", "suite.toml", "--json")
    assert {change["verb"] for change in json.loads(again.stdout)["changes"]} == {"keep"}


def test_the_prefect_yaml_of_the_repository_is_the_one_that_deploy_writes(stack: Stack, tmp_path: Path) -> None:
    suite, file = "deployments/suites/cross-cloud.toml", "deployments/prefect.yaml"
    assert run(stack, ROOT, "plumbline", "deploy", suite, "--write-prefect-yaml", str(tmp_path / "p")).returncode == 0
    assert (tmp_path / "p").read_text(encoding="utf-8") == (ROOT / file).read_text(encoding="utf-8")
