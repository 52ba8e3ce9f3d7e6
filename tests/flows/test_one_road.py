"""Deployment by a team: any folder, stock workers, Prefect's command and cron."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowFilter,
    FlowFilterName,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun

from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.local.process import Child, start, stop
from plumbline.night.central import CentralStore
from plumbline.schema.suite import Alert, Schedule, Suite
from tests.commands import run
from tests.flows.conftest import Server
from tests.flows.small_suite import small_suite, write_suite
from tests.flows.webhook_server import Receiver, receiver

pytestmark = pytest.mark.long
_CONTROLLERS = "one-road-ctl"
_ROUND_SECONDS = 500
_LIBRARY = """import sys
if any("'plumbline.train'" in word for word in sys.orig_argv):
    print("library: a deprecated call", file=sys.stderr)
"""
_STUB = (Path(__file__).parent / "stub_trainer/sitecustomize.py").read_text(encoding="utf-8")
"""Of the trainer alone: `test_several_apis.py` has a round of a team whose workers train."""


@dataclass
class Team:
    """Suite in its own folder, with stock workers and user commands."""

    server: Server
    suite: Suite
    folder: Path
    webhook: Receiver
    workers: dict[str, Child]

    @property
    def environment(self) -> dict[str, str]:
        return {**self.server.environment(self.folder / "home"), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command outside the suite's folder."""
        folder = self.folder / "elsewhere"
        return run(*command, code=code, env=self.environment, cwd=folder, seconds=_ROUND_SECONDS)

    def start_worker(self, name: str, pool: str) -> None:
        (self.folder / "site").mkdir(exist_ok=True)
        (self.folder / "site/sitecustomize.py").write_text(_LIBRARY + _STUB, encoding="utf-8")
        own = {
            "PLUMBLINE_CACHE": str(self.folder / "cache" / name), "PYTHONPATH": str(self.folder / "site"),
            "STUB": str(self.folder / "stub"),
        }  # fmt: skip
        self.workers[name] = start(
            name, services.worker_command(pool, f"one-road-{name}", limit=None if name == "controllers" else 1),
            log=self.folder / f"{name}.log", environment={**self.environment, **own}, folder=self.folder / name,
        )  # fmt: skip


@pytest.fixture
def team(client: SyncPrefectClient, server: Server, material_folder: Path, tmp_path: Path) -> Iterator[Team]:
    shutil.copytree(material_folder / "model/record", tmp_path / "stub/records/good")
    shutil.copytree(material_folder / "build", tmp_path / "elsewhere/.plumbline/build")
    suite = small_suite(tmp_path, "one-road", ("onprem",))
    onprem = suite.platforms["onprem"].model_dump()
    platforms = {
        name: {**onprem, "work_pool": f"one-road-{name}", "outbox": f"{onprem['outbox']}/{name}"}
        for name in ("first", "second")
    }
    events = ("drift", "invalid", "unavailable", "missed", "unjudged")
    alert = Alert(on=events, block="apprise-url/one-road")
    suite = suite.replace(reference="first", platforms=platforms, alerts=[alert], dispatch={"quorum": 2})
    with receiver("one-road") as webhook:
        team = Team(server, suite, tmp_path, webhook, {})
        write_suite(suite, tmp_path)
        yield team
        stop(team.workers.values(), grace_seconds=15)
    for deployment in client.read_deployments(limit=200):
        if "suite:one-road" in deployment.tags:
            client.delete_deployment(deployment.id)
    # A pool that stays would show the next test its stopped workers as online.
    for pool in client.read_work_pools():
        if pool.name.startswith("one-road-"):
            client.delete_work_pool(pool.name)


def runs_of(client: SyncPrefectClient, flow: str, deployment: str) -> list[FlowRun]:
    result = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])),
        deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[deployment])),
        limit=200,
    )
    return [run for run in result if run.state is not None]


def start_everything(team: Team) -> None:
    team.run("plumbline", "deploy", "../suite.toml", "--publish", "--controllers", _CONTROLLERS)
    for name, platform in team.suite.platforms.items():
        team.start_worker(name, platform.work_pool)
    team.start_worker("controllers", _CONTROLLERS)


def test_rounds_by_prefects_own_command_and_by_cron(client: SyncPrefectClient, team: Team) -> None:
    start_everything(team)
    central = CentralStore(open_store(team.suite.store))
    # With a parameter, as the form and `-p` give it.
    team.run("prefect", "deployment", "run", "plumbline-regression/one-road", "-p", "round_id=by-hand", "--watch")
    # `--watch` ends with the run, before it prints the newest lines of the log.
    (by_hand,) = runs_of(client, "plumbline-regression", "one-road")
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[by_hand.id]))
    deadline = time.monotonic() + 120
    while not any("✓ PASS one-road, round by-hand" in log.message for log in client.read_logs(wanted)):
        assert time.monotonic() < deadline, "the log has no verdict"
        time.sleep(0.5)
    assert [name for _, name in central.list_rounds()] == ["by-hand"]
    verdict = central.get_round("one-road", "by-hand")
    assert verdict.verdict == "pass"
    phases = {"opening", "training", "gathering", "judging", "confirming", "reporting", "alerting"}
    assert verdict.timings.keys() == phases | {"total"}
    assert verdict.timings["total"] == pytest.approx(sum(verdict.timings[name] for name in phases))
    # What a library prints in a training is in the log of the training's run.
    trainings = [runs_of(client, "plumbline-training", f"one-road-{name}")[0].id for name in team.suite.platforms]
    of_trainings, saying = LogFilter(flow_run_id=LogFilterFlowRunId(any_=trainings)), set[UUID]()
    deadline = time.monotonic() + 120  # Prefect sends lines in batches, the last one after the run.
    while saying != set(trainings) and time.monotonic() < deadline:
        printed = client.read_logs(of_trainings, limit=200)
        saying = {log.flow_run_id for log in printed if log.message == "library: a deprecated call"}
        time.sleep(0.5)
    assert saying == set(trainings)
    # A cron, which gives no parameters, and the watch beside it. Rounds of every minute would wait for each other, and
    # each that waits starts a process again and again.
    minutes = ",".join(str((time.gmtime().tm_min + ahead) % 60) for ahead in (1, 3, 5, 7))
    team.suite = team.suite.replace(schedule=Schedule(cron=f"{minutes} * * * *", grace_seconds=600))
    write_suite(team.suite, team.folder)
    team.run("plumbline", "deploy", "../suite.toml", "--controllers", _CONTROLLERS)
    # Beside the run of the watch's own schedule, whose minute this may be, a second one is cancelled.
    for _ in range(3):
        watched = team.run("prefect", "deployment", "run", "plumbline-watch/one-road", "--watch", code=None)
        if "state 'Cancelled'" not in watched.stdout:
            break
    assert watched.returncode == 0, watched.stdout + watched.stderr
    # Prefect plans runs of a new schedule in its own time, and asks for a round's slot every 30 s.
    deadline = time.monotonic() + 2 * _ROUND_SECONDS
    while len(central.list_rounds()) < 2:
        assert time.monotonic() < deadline, [run.state for run in runs_of(client, "plumbline-regression", "one-road")]
        time.sleep(0.5)
    newest = next(name for _, name in central.list_rounds() if name != "by-hand")
    assert central.get_round("one-road", newest).verdict == "pass"
    states = {run.state.name for run in runs_of(client, "plumbline-regression", "one-road") if run.state.is_final()}
    assert states <= {"Completed"}
    assert team.webhook.got == []
