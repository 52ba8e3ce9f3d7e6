"""`plumbline run --api` on a running server."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from plumbline.local import services
from plumbline.local.process import start, stop
from tests.commands import run_plumbline
from tests.flows.conftest import Server
from tests.flows.small_suite import write_suite
from tests.flows.stubs import Material, StubWorkers, suite_of


@pytest.mark.long
def test_a_round_on_a_server_of_the_teams(
    client: SyncPrefectClient, server: Server, material: Material, material_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(material_folder / "build", tmp_path / ".plumbline/build")
    suite = suite_of(tmp_path, "by-api", 2)
    path = write_suite(suite, tmp_path)
    command, given = ("run", path, "--api", "--json"), {"env": server.environment(tmp_path / "cli"), "cwd": tmp_path}
    undeployed = run_plumbline(*command, code=2, **given)
    assert json.loads(undeployed.stdout)["verdict"] is None
    assert "plumbline-regression/by-api: is not deployed (hint: plumbline deploy SUITE)" in undeployed.stderr
    run_plumbline("deploy", path, "--controllers", "by-api-ctl", **given)
    with (
        StubWorkers(suite, server.api_url, material[1], tmp_path / "work"),
        controllers(server, tmp_path, "by-api-ctl"),
    ):
        early = run_plumbline(*command, code=2, **given)
        assert json.loads(early.stdout)["exit_code"] == 2
        assert "no spec was published yet" in early.stderr
        # Off a terminal too, its first line says what `--round` asks for.
        assert re.fullmatch(r" +\d+\.\d s  round \d{8}-\d{6}-[0-9a-f]{6}", early.stderr.splitlines()[0])
        done = run_plumbline(*command, "--prepare", **given)
    verdict = json.loads(done.stdout)
    assert {name: item["verdict"] for name, item in verdict["platforms"].items()} == {"p00": "pass", "p01": "pass"}
    ours = FlowRunFilter(name=FlowRunFilterName(any_=[f"by-api {verdict['round']}"]))
    assert [item.state.type.value for item in client.read_flow_runs(flow_run_filter=ours) if item.state] == [
        "COMPLETED"
    ]
    # What the command left behind is what it has built, and no server of its own.
    assert not (tmp_path / ".plumbline" / "prefect").exists()


@contextmanager
def controllers(server: Server, folder: Path, pool: str) -> Iterator[None]:
    """Start a stock worker of the controllers' pool in an empty folder."""
    worker = start(
        "controllers", services.worker_command(pool, pool, limit=None), log=folder / "controllers.log",
        environment=server.environment(folder / "cli"), folder=folder / "empty",
    )  # fmt: skip
    try:
        yield
    finally:
        stop([worker], grace_seconds=10)
