"""Controller's CPU time and memory for 2 to 50 platforms.

    python bench/dispatch/growth.py --counts 50 --workloads 4 --out bench/results/dispatch-growth.json

A stock Prefect server, a stock worker of the controllers and real flow runs; stub workers deliver copies of one real
record at once, so that the measured cost is the controller's. The CPU time is that of the round's flow run process
(user and system), its start and imports included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from plumbline.central import CentralStore
from plumbline.deployment import REGRESSION
from plumbline.prepare import prepare
from plumbline.rounds.documents import write_specs
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from tests.flows.local_stack import RunningStack, running_stack
from tests.flows.small_suite import small_suite
from tests.flows.stubs import StubWorkers, deploy, model_record

_ROUND_SECONDS = 900
_TICKS = os.sysconf("SC_CLK_TCK")


def suite_of(state: Path, count: int, num_workloads: int) -> Suite:
    """Return a suite of so many platforms that share data, each of which trains all workloads."""
    base = small_suite(state, f"grow-{count}", ("onprem",)).model_dump(mode="json", exclude_none=True)
    workloads = {f"w{number:02}": base["workloads"]["tiny"] for number in range(num_workloads)}
    shared = {"data": f"file://{state}/onprem/data", "start_seconds": 300, "run_seconds": 120}
    platforms = {
        f"p{n:02}": {"work_pool": f"grow-{n:02}", "outbox": f"file://{state}/onprem/outbox/p{n:02}", **shared}
        for n in range(count)
    }
    return Suite.model_validate({**base, "reference": "p00", "platforms": platforms, "workloads": workloads})


def one_round(stack: RunningStack, client: SyncPrefectClient, suite: Suite, record: Path) -> dict[str, Any]:
    """Run one deployed round; return the cost of its flow run process."""
    state = stack.stack.state
    round_id = f"20261120-020000-{suite.name}"
    deploy(suite)
    with StubWorkers(suite, stack.stack.api_url, record, state / "work", login=stack.stack.login):
        run = cast(
            "FlowRun", run_deployment(f"{REGRESSION}/{suite.name}", parameters={"round_id": round_id}, timeout=0)
        )
        cpu, peak, deadline = 0.0, 0, time.monotonic() + _ROUND_SECONDS
        while not _is_over(run := client.read_flow_run(run.id)):
            if time.monotonic() > deadline:
                raise SystemExit(f"{suite.name}: the round did not end")
            for pid in stack.controllers():
                with suppress(OSError, StopIteration):
                    cpu, peak = max(cpu, _cpu_seconds(pid)), max(peak, _peak_kib(pid))
            time.sleep(0.5)
    verdict = CentralStore(open_store(suite.store)).get_round(suite.name, round_id)
    if verdict.verdict != "pass":
        raise SystemExit(f"{suite.name}: {verdict.verdict}: {verdict.notes}")
    return {
        "platforms": len(suite.platforms),
        "workloads": len(suite.workloads),
        "wall_seconds": round(run.total_run_time.total_seconds(), 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mib": peak // 1024,
        "phases": {name: round(seconds, 2) for name, seconds in verdict.timings.items()},
    }


def _is_over(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--counts", type=int, nargs="*", default=[2, 5, 10, 20, 50])
    parser.add_argument("--workloads", type=int, default=1)
    args = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="plumbline-growth-"))
    rounds = []
    try:
        suite = small_suite(state, platforms=("onprem",))
        specs = prepare(suite, state / "build", lambda line: print(line, file=sys.stderr))
        record = model_record(specs["tiny"], suite.platforms["onprem"].data, state / "model")
        with (
            running_stack(state, suite=suite) as stack,
            temporary_settings({PREFECT_API_URL: stack.stack.api_url, PREFECT_API_AUTH_STRING: stack.stack.login}),
            get_client(sync_client=True) as client,
        ):
            for count in args.counts:
                grown = suite_of(state, count, args.workloads)
                own = {name: specs["tiny"].replace(workload=name) for name in grown.workloads}
                write_specs(CentralStore(open_store(grown.store)), grown, own)
                rounds.append(one_round(stack, client, grown, record))
                print(json.dumps(rounds[-1]), flush=True)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if args.out:
        place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": machine.python_version()}
        args.out.write_text(json.dumps({"place": place, "rounds": rounds}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
