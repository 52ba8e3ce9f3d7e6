"""What a controller costs as the platforms grow from 2 to 50: its own time for each, and its memory.

    python bench/dispatch/growth.py --out bench/results/dispatch-growth.json

A real Prefect server, a real controller process and real flow runs; stub workers deliver copies of one real record at
once, so that what is measured is the controller's. Its CPU time is the process's own (user and system).
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from plumbline.central import CentralStore
from plumbline.localstack import Stack
from plumbline.prepare import prepare
from plumbline.rounds.recipes import keep_recipes
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from tests.flows.ground import Follower, small_suite, to_toml
from tests.flows.stubs import StubWorkers, model_record


def suite_of(state: Path, count: int) -> Suite:
    """A suite of so many platforms, all on the same stores."""
    base = small_suite(state, f"grow-{count}", ("onprem",)).model_dump(mode="json", exclude_none=True)
    store = {"data": f"file://{state}/onprem/data", "outbox": f"file://{state}/onprem/outbox"}
    limits = {"start_seconds": 120, "run_seconds": 120}
    platforms = {f"p{n:02}": {"work_pool": f"grow-{n:02}", **store, **limits} for n in range(count)}
    return Suite.model_validate({**base, "reference": "p00", "platforms": platforms})


def one_round(stack: Stack, suite: Suite, record: Path, state: Path) -> dict[str, Any]:
    """One round in a controller of its own, and what it cost."""
    path = state / f"{suite.name}.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    options = ["--suite", str(path), "--round", f"20261120-020000-{suite.name}", "--state", str(state)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with StubWorkers(suite, stack.api_url, record, state / "work"):
        child = stack.start_controller([sys.executable, "-m", "flows.controller", *options], log=suite.name)
        peak = [0]

        def tick() -> None:
            status = Path(f"/proc/{child.process.pid}/status")
            lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
            peak.extend(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

        verdict = Follower(child, tick, suite).verdict(300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if verdict["verdict"] != "pass":
        raise SystemExit(f"{suite.name}: {verdict['verdict']}: {verdict['notes']}")
    count = len(suite.platforms)
    return {
        "platforms": count,
        "wall_seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(cpu, 2),
        "peak_mib": max(peak) // 1024,
        "phases": {name: round(seconds, 2) for name, seconds in verdict["timings"].items()},
    }


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--counts", type=int, nargs="*", default=[2, 5, 10, 20, 50])
    args = parser.parse_args()
    state = Path(tempfile.mkdtemp(prefix="plumbline-growth-"))
    try:
        suite = small_suite(state, platforms=("onprem",))
        specs = prepare(suite, state / "build", lambda line: print(line, file=sys.stderr))
        record = model_record(specs["tiny"], suite.platforms["onprem"].data, state / "model")
        with Stack(suite, state, say=lambda line: print(line, file=sys.stderr)) as stack:
            stack.servers.wait_for_api()
            rounds = []
            for count in args.counts:
                grown = suite_of(state, count)
                keep_recipes(CentralStore(open_store(grown.store)), grown, specs)
                rounds.append(one_round(stack, grown, record, state))
                print(json.dumps(rounds[-1]), flush=True)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    if args.out:
        place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": machine.python_version()}
        args.out.write_text(json.dumps({"place": place, "rounds": rounds}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
