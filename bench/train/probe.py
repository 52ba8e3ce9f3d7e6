"""Cost of a whole probe on one core, from Python's start to the record.

    PYTHONPATH=. python bench/train/probe.py --out bench/results/train-probe.json

Measured is the processor time of the training's process, which a busy machine stretches little, beside wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.train.workload import Workload, machine
from plumbline.launch import trainer_environment
from plumbline.schema.record import read_record
from plumbline.schema.spec import write_spec

SHAPES = ((16, 32), (16, 64), (32, 128))


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _once(workload: Workload, spec: Path, core: int) -> dict[str, Any]:
    out = workload.folder / "record"
    command = [sys.executable, "-m", "plumbline.train", str(spec), str(out), "--data", workload.url]
    command += ["--cache", str(workload.folder / "cache")]
    before, began = _used(), time.perf_counter()
    subprocess.run(
        command, env=trainer_environment({"OMP_NUM_THREADS": "1"}), check=True, capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    seconds = {"cpu": _used() - before, "wall": time.perf_counter() - began}
    return {**seconds, "record_bytes": size, "timings": read_record(out).timings}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    core, results_found = min(os.sched_getaffinity(0)), []
    for batch, length in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            workload = Workload(Path(folder), "tiny", length)
            spec = Path(folder) / "spec.json"
            write_spec(workload.spec(batch, probe={"steps": 20}), spec)
            runs = [_once(workload, spec, core) for _ in range(arguments.repeats)]
        median = statistics.median(run["cpu"] for run in runs)
        results_found.append({"batch": batch, "length": length, "cpu_seconds": median, "runs": runs})
        print(f"{batch} x {length}: {median:.1f} CPU seconds", flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine(), "shapes": results_found}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
