"""How long it takes from the trigger to the first training step, and where the time goes.

    python bench/dispatch/first_step.py --out bench/results/first-step.json

A local stack that is up, its workers idle: two platforms, an S3 and a Blob endpoint, as in `make run`. Two triggers:

- `deployment`: a flow run of the round's deployment is made, as a schedule, an event or a webhook does; counted from
  just before that request.
- `command`: `plumbline run SUITE --api`; counted from just before the process is started.

The end is the moment at which the trainer says that it begins step 0 of the probe, as Prefect's log of the training has
it: its data and weights are staged by then, its model is built. Both platforms start at once, on a core each where
there are two, and it is the slower one that counts; the faster stands beside it.

A machine that others share is now faster, now slower: beside each round stands what one fixed loop took just before and
just after it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterTags,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.central import CentralStore
from plumbline.localstack import Stack
from plumbline.stores import open_store
from tests.flows.ground import Ground, small_suite, to_toml

_ROUND_SECONDS = 180
_QUIET_SECONDS = 10.0
_LOOK_SECONDS = 2.0
_IDLE_SECONDS = 15.0
"""Before the first look at whether the round has ended, and between two: each is a request to the server measured.
Before each round the workers have been idle for the last of the three, as they are at night."""


def rounds_of(client: SyncPrefectClient, suite: str) -> list[FlowRun]:
    """The controllers' runs, latest first."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["plumbline-round", f"suite:{suite}"]))
    found = client.read_flow_runs(flow_run_filter=wanted, limit=200)
    return sorted(found, key=lambda run: str(run.created), reverse=True)


def _pace() -> float:
    """Seconds for ten million additions, on one core."""
    began = time.perf_counter()
    total = 0
    for number in range(10_000_000):
        total += number
    return round(time.perf_counter() - began, 3)


def _seconds(since: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else round((moment - since).total_seconds(), 3)


def _first_step(client: SyncPrefectClient, run: FlowRun) -> datetime:
    """When the trainer said that it begins step 0. Logs come in batches, a moment later."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
        for line in logs:
            if line.message.startswith("probe 0/"):
                return line.timestamp
        time.sleep(0.5)
    raise SystemExit(f"{run.name} has no log of its first step")


def _moments(client: SyncPrefectClient, run: FlowRun, since: datetime) -> dict[str, float | None]:
    """Created, and when its states began, counted from the trigger."""
    states = sorted(client.read_flow_run_states(run.id), key=lambda state: str(state.timestamp))
    told = {"created": _seconds(since, run.created)}
    for state in states:
        told.setdefault(str(state.type.value).lower(), _seconds(since, state.timestamp))
    return told


def once(client: SyncPrefectClient, this: Ground, trigger: Callable[[], object]) -> dict[str, Any]:
    """One round, and its moments."""
    time.sleep(_IDLE_SECONDS)
    before = {run.id for run in rounds_of(client, this.suite.name)}
    pace = [_pace()]
    since = datetime.now(UTC)
    trigger()
    deadline = time.monotonic() + _ROUND_SECONDS
    time.sleep(_QUIET_SECONDS)
    while not (found := [run for run in rounds_of(client, this.suite.name) if run.id not in before and _over(run)]):
        if time.monotonic() > deadline:
            raise SystemExit("the round did not end")
        time.sleep(_LOOK_SECONDS)
    controller = found[0]
    if controller.state is None or not controller.state.is_completed():
        raise SystemExit(f"the round did not pass: {controller.state}")
    round_id = (controller.state.message or "") and _round_of(client, controller, this.suite.name)
    central = CentralStore(open_store(this.suite.store))
    platforms = {}
    for run in _children(client, round_id):
        record = central.get_round(round_id).platforms[run.name.split()[0]].records[0]
        timings = json.loads((central_record(central, record, this.stack.state) / "record.json").read_bytes())[
            "timings"
        ]
        platforms[run.name.split()[0]] = {
            **_moments(client, run, since),
            "first_step": _seconds(since, _first_step(client, run)),
            "trainer_import_seconds": round(timings["import"], 3),
            "trainer_stage_seconds": round(timings["stage"], 3),
        }
    steps = [one["first_step"] for one in platforms.values()]
    pace.append(_pace())
    return {
        "seconds": max(steps), "faster_platform": min(steps), "pace_seconds": pace,
        "controller": _moments(client, controller, since), "platforms": platforms,
    }  # fmt: skip


def _over(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def _round_of(client: SyncPrefectClient, controller: FlowRun, suite: str) -> str:
    """The round's name stands in the tags of its trainings, which began after it."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"suite:{suite}"]))
    for run in sorted(client.read_flow_runs(flow_run_filter=wanted, limit=200), key=lambda one: str(one.created)):
        if str(run.created) > str(controller.created):
            for tag in run.tags:
                if tag.startswith("round:"):
                    return tag.removeprefix("round:")
    raise SystemExit("the round dispatched nothing")


def _children(client: SyncPrefectClient, round_id: str) -> list[FlowRun]:
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{round_id}"])))


def central_record(central: CentralStore, record: str, state: Path) -> Path:
    """The record's folder."""
    return central.get_record(record, state / "gathered")


def _warm(this: Ground) -> None:
    """The second round of a stack is like every later one: caches are filled, compiled files are there."""
    this.start_round().verdict()


def measure(state: Path, repeat: int) -> dict[str, Any]:
    """Both triggers, by turns."""
    suite = small_suite(state, "first-step")
    path = state / "first-step.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    with Stack(suite, state, say=lambda line: print(line, file=sys.stderr)) as stack:
        stack.servers.wait_for_stores()
        stack.servers.wait_for_api()
        stack.prepare_pools()
        stack.start_workers()
        this = Ground(stack, suite)
        this.until_online(*suite.platforms)
        command = [sys.executable, "-m", "plumbline"]
        where = ["--state", str(state / "by-hand")]
        subprocess.run(
            [*command, "deploy", str(path), "--publish", *where], env=stack.environment(), check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        stack.start_controller_worker("plumbline")
        with temporary_settings({PREFECT_API_URL: stack.api_url}), get_client(sync_client=True) as client:
            _warm(this)
            deployment = client.read_deployment_by_name(f"regression/{suite.name}")
            by_hand: list[subprocess.Popen[bytes]] = []

            def start() -> None:
                by_hand.append(
                    subprocess.Popen(
                        [*command, "run", str(path), "--api", "--json", *where], env=stack.environment(),
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    )
                )  # fmt: skip

            triggers = {
                "deployment": lambda: client.create_flow_run_from_deployment(deployment.id),
                "command": start,
            }
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in triggers}
            for _ in range(repeat):
                for name, trigger in triggers.items():
                    rounds[name].append(once(client, this, trigger))
                    if by_hand and by_hand.pop().wait(60):
                        raise SystemExit("the command failed")
                    print(json.dumps({name: rounds[name][-1]}), flush=True)
                    time.sleep(2)
    return {
        name: {"median_seconds": statistics.median(one["seconds"] for one in lot), "rounds": lot}
        for name, lot in rounds.items()
    }


def _python() -> str:
    """Version and build: one that its distribution optimised loads libraries a fifth faster than a plain build."""
    return " ".join([machine.python_version(), *machine.python_build()])


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=6)
    args = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="plumbline-first-"))
    try:
        found = measure(state, args.repeat)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    load = os.getloadavg()
    place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": _python(), "load": load}
    print(json.dumps({name: one["median_seconds"] for name, one in found.items()}))
    if args.out:
        args.out.write_text(json.dumps({"place": place, **found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
