"""Local stack on SQLite and PostgreSQL: round times, refused requests, hangs.

    PATH=$(dirname $(find .venv/peers -name initdb)):$PATH python bench/dispatch/databases.py --out FILE

Without a PostgreSQL on the path, the installed one is used. Both databases serve the same stock server, with the same
stock workers and suite, in alternating blocks of five rounds. Each round is started as a schedule starts it.

A refused request is an error that Prefect's server answers with 503, so that its client repeats the request. A hang is
a round that takes more than three times the median.
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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from bench.dispatch.first_step import once
from drills.postgres import binary, running_postgres
from plumbline.deployment import REGRESSION
from tests.flows.local_stack import running_stack
from tests.flows.small_suite import small_suite

_SETTINGS = "[server]\nlog_retryable_errors = true\n"
_REFUSED = "retryable exception in request"
_LOCKED = "database is locked"


def block(database: str, repeat: int) -> dict[str, Any]:
    """Run `repeat` rounds on the database after a warm-up; return times and log."""
    state = Path(tempfile.mkdtemp(prefix=f"plumbline-{database}-"))
    try:
        (state / "prefect").mkdir()
        # Prefect reads this file in the folder in which its server starts.
        (state / "prefect" / "prefect.toml").write_text(_SETTINGS, encoding="utf-8")
        with running_postgres(state) if database == "postgresql" else nullcontext():
            return _rounds(state, repeat)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _rounds(state: Path, repeat: int) -> dict[str, Any]:
    suite, began = small_suite(state, "databases"), time.monotonic()
    with (
        running_stack(state, suite=suite) as stack,
        temporary_settings({PREFECT_API_URL: stack.stack.api_url}),
        get_client(sync_client=True) as client,
    ):
        up = time.monotonic() - began
        stack.start_round().verdict()
        deployment = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}")
        rounds = [
            once(client, stack, lambda: client.create_flow_run_from_deployment(deployment.id)) for _ in range(repeat)
        ]
        log = stack.stack.log("prefect").read_text(encoding="utf-8", errors="replace")
    return {
        "start_seconds": round(up, 1),
        "refused_requests": log.count(_REFUSED),
        "locked": log.count(_LOCKED),
        "rounds": [{key: item[key] for key in ("seconds", "whole_seconds", "pace_seconds")} for item in rounds],
    }


def _summary(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [item["whole_seconds"] for block in blocks for item in block["rounds"]]
    median = statistics.median(whole)
    return {
        "rounds": len(whole),
        "median_round_seconds": round(median, 1),
        "longest_round_seconds": round(max(whole), 1),
        "median_first_step_seconds": round(statistics.median(o["seconds"] for b in blocks for o in b["rounds"]), 1),
        "median_start_seconds": statistics.median(block["start_seconds"] for block in blocks),
        "refused_requests": sum(block["refused_requests"] for block in blocks),
        "hangs": sum(item > 3 * median for item in whole),
    }


def main() -> int:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    result: dict[str, list[dict[str, Any]]] = {"sqlite": [], "postgresql": []}
    for _ in range(args.blocks):
        for database, blocks in result.items():
            blocks.append(block(database, args.repeat))
            print(json.dumps({database: blocks[-1]}), flush=True)
    version = subprocess.run([binary("postgres"), "--version"], capture_output=True, text=True, check=True)
    place = {
        "machine": machine.machine(), "cores": os.cpu_count(), "python": machine.python_version(),
        "postgresql": version.stdout.strip(),
    }  # fmt: skip
    summary = {database: _summary(blocks) for database, blocks in result.items()}
    print(json.dumps(summary, indent=1))
    if args.out:
        content = {"place": place, "summary": summary, "blocks": result}
        args.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
