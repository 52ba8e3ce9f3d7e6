"""A history of 10,000 rounds on eight platforms: reading, judging, `history`, rebuilding, and growth.

`python -m bench.history.scale [--rounds N]`; raw results in `bench/results/history-scale.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from plumbline.central import CentralStore
from plumbline.central.series import extend_series, read_series, rebuild_series, series_key, write_series
from plumbline.history.allowed import allowed_for
from plumbline.history.metrics import METRICS
from plumbline.history.night import judge_lines
from plumbline.history.segments import lines_of
from plumbline.history.series import JudgedRound, NightRow, SeriesFile, extended
from plumbline.stores import open_store

OUT = Path(__file__).resolve().parents[1] / "results" / "history-scale.json"
BEGIN = datetime(2000, 1, 1, 2, tzinfo=UTC)
PLATFORMS = [f"p{number}" for number in range(8)]
LEVELS = {"throughput": 640.0, "slow_step": 0.06, "data_wait": 0.002, "peak_memory": 2e9, "first_step": 31.0,
          "accuracy": 0.9, "evaluation_loss": 0.3}  # fmt: skip
SUITE = """name = "nightly"
store = "{store}"
reference = "p0"
workloads.w = {{ model = "tiny", data = "d", seed = 7, batch_size = 8, speed = {{ steps = 20 }} }}
"""


def row_of(platform: str, index: int, generator: np.random.Generator) -> NightRow:
    """Return one night's row."""
    metrics = {name: level * float(np.exp(generator.normal(0, 0.01))) for name, level in LEVELS.items()}
    return NightRow(
        record=f"{platform}-{index:05d}", round=f"{BEGIN + timedelta(days=index):%Y%m%d-%H%M%S}-abcdef",
        time=BEGIN + timedelta(days=index), workload="w", spec="5" * 16, lock=f"{index // 90:016d}",
        hardware="1 x NVIDIA A10G", software=f"{index // 90:016d}", metrics=metrics,
    )  # fmt: skip


def write_records(central: CentralStore, rows: dict[str, list[NightRow]]) -> float:
    """Write a record of each row, as the trainer's would be but for its evidence; return the bytes of one."""
    from tests.unit.judge.conftest import make_record
    from tests.unit.judge.test_speed import speed

    made = make_record().record
    content = json.loads(made.replace(evidence=made.evidence.replace(speed=speed().to_json())).model_dump_json())
    root = Path(central.store.url.removeprefix("file://")) / "records"
    size = 0
    for platform, lot in rows.items():
        for row in lot:
            content |= {"record_id": row.record, "platform": platform, "round_id": row.round}
            content |= {"started_at": row.time.isoformat(), "finished_at": row.time.isoformat()}
            content["evidence"]["speed"]["samples_per_second"] = row.metrics["throughput"]
            folder = root / row.record
            folder.mkdir(parents=True)
            data = json.dumps(content)
            size = len(data)
            (folder / "record.json").write_text(data)
    return size


def judge_tonight(central: CentralStore, rows: dict[str, NightRow]) -> None:
    """Read every series once, and decide on tonight."""
    allowed = allowed_for(num_platforms=len(PLATFORMS), num_series=len(PLATFORMS) * len(METRICS))
    for platform in PLATFORMS:
        series = extended(read_series(central, "nightly", platform), [rows[platform]])
        judge_lines(lines_of(series, METRICS), allowed)


def measured(code: str, *arguments: str) -> dict[str, float]:
    """Run code in a separate process, and return its CPU seconds and peak memory."""
    run = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout.splitlines()[-1]))


TONIGHT = """
import json, resource, sys, time
from bench.history.scale import PLATFORMS, judge_tonight, row_of
from plumbline.central import CentralStore
from plumbline.stores import open_store
import numpy as np
central = CentralStore(open_store(sys.argv[1]))
generator = np.random.default_rng(9)
rows = {name: row_of(name, int(sys.argv[2]), generator) for name in PLATFORMS}
before = time.process_time()
judge_tonight(central, rows)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"cpu_seconds": time.process_time() - before, "peak_mib": peak}))
"""
HISTORY = """
import contextlib, io, json, sys, time
from plumbline.cli.main import main
before = time.process_time(), time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    code = main(["history", sys.argv[1]])
cpu, seconds = time.process_time() - before[0], time.perf_counter() - before[1]
print(json.dumps({"cpu_seconds": cpu, "seconds": seconds, "code": code}))
"""


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=None, help="records to rebuild from (default: all rounds)")
    args = parser.parse_args()
    generator = np.random.default_rng(1)
    found: dict[str, object] = {"command": "python -m bench.history.scale", "rounds": args.rounds, "platforms": 8}
    found["machine"] = f"{os.cpu_count()} cores"
    with tempfile.TemporaryDirectory(prefix="plumbline-scale-") as folder:
        url = f"file://{folder}/central"
        central = CentralStore(open_store(url))
        rows = {name: [row_of(name, index, generator) for index in range(args.rounds)] for name in PLATFORMS}
        for name, lot in rows.items():
            judged = {row.round: JudgedRound(time=row.time.timestamp(), verdict="pass") for row in lot[-400:]}
            write_series(central, extended(SeriesFile(suite="nightly", platform=name), lot, (), judged))
        size = central.store.stat(series_key("nightly", "p0")).size
        found["bytes_per_platform_night"] = round(size / args.rounds, 1)
        found["tonight"] = measured(TONIGHT, url, str(args.rounds))
        suite = Path(folder) / "suite.toml"
        tables = [
            f'platforms.{name} = {{ work_pool = "{name}", data = "{url}/d", outbox = "{url}-{name}" }}'
            for name in PLATFORMS
        ]
        suite.write_text(SUITE.format(store=url) + "\n".join(tables))
        found["history"] = measured(HISTORY, str(suite))
        print(json.dumps(found), flush=True)
        count = args.records or args.rounds
        some = {name: lot[:count] for name, lot in rows.items()}
        found["record_bytes"] = write_records(central, some)
        started = time.perf_counter(), time.process_time()
        again = rebuild_series(central, "nightly", central.list_records(), PLATFORMS)
        found["rebuild"] = {
            "records": count * len(PLATFORMS),
            "seconds": round(time.perf_counter() - started[0], 1),
            "cpu_seconds": round(time.process_time() - started[1], 1),
            "equal": all(
                again[name].record == tuple(row.record for row in some[name])
                and again[name].metrics["throughput"]
                == tuple(float(f"{row.metrics['throughput']:.9g}") for row in some[name])
                for name in PLATFORMS
            ),
        }
        before = time.process_time()
        extend_series(central, "nightly", "p0", [row_of("p0", args.rounds, generator)])
        found["extend_one_series_cpu_seconds"] = round(time.process_time() - before, 3)
    found["peak_mib_of_this_process"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(found, indent=1))
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
