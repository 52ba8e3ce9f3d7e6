"""Time from trigger to first training step, by phase.

    python bench/dispatch/first_step.py --out bench/results/first-step.json

A local stack that is up, its workers idle: a stock server, a stock worker for each of two platforms and for the
controllers, an S3 and a Blob endpoint, as in `make run`. Two triggers:

- `deployment`: a flow run of the round's deployment is created, as a schedule, an event or a webhook does; the time
  counts from just before that request.
- `command`: `plumbline run SUITE --api`; the time counts from just before the process is started.

The end is the moment at which the trainer reports step 0 of the probe, as Prefect's log of the training shows it: the
data and the weights are staged, the model is built. Both platforms start at once, on a core each where there are two,
and the slower one counts; the faster one is reported beside it.

The speed of a shared machine changes: each round comes with the time of one fixed loop just before and just after it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import shutil
import statistics
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
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.central import CentralStore
from plumbline.deployment import REGRESSION
from plumbline.stores import open_store
from tests.flows.local_stack import RunningRound, RunningStack, running_stack
from tests.flows.small_suite import small_suite

_ROUND_SECONDS = 180
_QUIET_SECONDS = 10.0
"""Before the first poll for the end of the round: each poll is a request to the measured server."""
_POLL_SECONDS = 2.0
_IDLE_SECONDS = 15.0
"""Before each round, so that the workers are idle as they are at night."""


def rounds_of(client: SyncPrefectClient, suite: str) -> list[FlowRun]:
    """Return the controllers' runs, latest first."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["plumbline-round", f"suite:{suite}"]))
    result = client.read_flow_runs(flow_run_filter=wanted, limit=200)
    return sorted(result, key=lambda run: str(run.created), reverse=True)


def _pace() -> float:
    """Return the seconds for ten million additions on one core."""
    began = time.perf_counter()
    total = 0
    for number in range(10_000_000):
        total += number
    return round(time.perf_counter() - began, 3)


def _seconds(since: datetime, moment: datetime | None) -> float | None:
    return None if moment is None else round((moment - since).total_seconds(), 3)


def _first_step(client: SyncPrefectClient, run: FlowRun) -> datetime:
    """Return the time of step 0 in the trainer's log."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
        for line in logs:
            if line.message.startswith("probe 0/"):
                return line.timestamp
        time.sleep(0.5)
    raise SystemExit(f"{run.name} has no log of its first step")


def _moments(client: SyncPrefectClient, run: FlowRun, since: datetime) -> dict[str, float | None]:
    """Return creation and state times, relative to the trigger."""
    states = sorted(client.read_flow_run_states(run.id), key=lambda state: str(state.timestamp))
    output = {"created": _seconds(since, run.created)}
    for state in states:
        output.setdefault(str(state.type.value).lower(), _seconds(since, state.timestamp))
    return output


def once(client: SyncPrefectClient, stack: RunningStack, trigger: Callable[[], object]) -> dict[str, Any]:
    """Run one round; return its times."""
    time.sleep(_IDLE_SECONDS)
    before = {run.id for run in rounds_of(client, stack.suite.name)}
    pace = [_pace()]
    since = datetime.now(UTC)
    trigger()
    deadline = time.monotonic() + _ROUND_SECONDS
    time.sleep(_QUIET_SECONDS)
    while not (result := [run for run in rounds_of(client, stack.suite.name) if run.id not in before and _over(run)]):
        if time.monotonic() > deadline:
            raise SystemExit("the round did not end")
        time.sleep(_POLL_SECONDS)
    controller = result[0]
    if controller.state is None or not controller.state.is_completed():
        raise SystemExit(f"the round did not pass: {controller.state}")
    round_id = _round_of(client, controller, stack.suite.name)
    central = CentralStore(open_store(stack.suite.store))
    platforms = {}
    for run in _children(client, round_id):
        platform = run.name.split()[0]
        record = central.get_round(stack.suite.name, round_id).platforms[platform].records[0]
        folder = central.get_record(record, stack.stack.state / "gathered")
        timings = json.loads((folder / "record.json").read_bytes())["timings"]
        platforms[platform] = {
            **_moments(client, run, since),
            "first_step": _seconds(since, _first_step(client, run)),
            "trainer_import_seconds": round(timings["import"], 3),
            "trainer_stage_seconds": round(timings["stage"], 3),
        }
    steps = [item["first_step"] for item in platforms.values()]
    pace.append(_pace())
    return {
        "seconds": max(steps), "faster_platform": min(steps), "whole_seconds": _seconds(since, controller.end_time),
        "pace_seconds": pace,
        "controller": _moments(client, controller, since), "platforms": platforms,
    }  # fmt: skip


def _over(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def _round_of(client: SyncPrefectClient, controller: FlowRun, suite: str) -> str:
    """Return the round's name from the tags of its trainings, which began after it."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"suite:{suite}"]))
    for run in sorted(client.read_flow_runs(flow_run_filter=wanted, limit=200), key=lambda one: str(one.created)):
        if str(run.created) > str(controller.created):
            for tag in run.tags:
                if tag.startswith("round:"):
                    return tag.removeprefix("round:")
    raise SystemExit("the round dispatched nothing")


def _children(client: SyncPrefectClient, round_id: str) -> list[FlowRun]:
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{round_id}"])))


def measure(state: Path, repeat: int) -> dict[str, Any]:
    """Run rounds from both triggers in turn."""
    suite = small_suite(state, "first-step")
    rounds: dict[str, list[dict[str, Any]]] = {"deployment": [], "command": []}
    with (
        running_stack(state, suite=suite) as stack,
        temporary_settings({PREFECT_API_URL: stack.stack.api_url, PREFECT_API_AUTH_STRING: stack.stack.login}),
        get_client(sync_client=True) as client,
    ):
        # The second round of a stack is like every later one: caches are filled, compiled files exist.
        stack.start_round().verdict()
        path = stack.write_suite(suite)
        deployment = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}")
        commands: list[RunningRound] = []
        triggers: dict[str, Callable[[], object]] = {
            "deployment": lambda: client.create_flow_run_from_deployment(deployment.id),
            "command": lambda: commands.append(
                stack.start_deployed(path, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-by-command")
            ),
        }
        for _ in range(repeat):
            for name, trigger in triggers.items():
                rounds[name].append(once(client, stack, trigger))
                if commands and commands.pop().end(60):
                    raise SystemExit("the command failed")
                print(json.dumps({name: rounds[name][-1]}), flush=True)
                time.sleep(2)
    return {
        name: {"median_seconds": statistics.median(item["seconds"] for item in lot), "rounds": lot}
        for name, lot in rounds.items()
    }


def _python() -> str:
    """Return Python's version and build."""
    return " ".join([machine.python_version(), *machine.python_build()])


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=6)
    args = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="plumbline-first-"))
    try:
        result = measure(state, args.repeat)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    load = os.getloadavg()
    place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": _python(), "load": load}
    print(json.dumps({name: item["median_seconds"] for name, item in result.items()}))
    if args.out:
        args.out.write_text(json.dumps({"place": place, **result}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
