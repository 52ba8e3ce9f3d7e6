"""`python -m bench.capture.loops [NAME ...] --work DIR`: train ten small loops with and without faults, and judge them.

Each loop trains honestly twice and with each kind of fault on this machine, and again on a different one: AVX2, two
threads, a different attention. Each record is judged beside the first honest one, and alone. The Trainer needs
accelerate. The table is `bench/results/capture-loops.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plumbline
from bench.capture.loops.planted import KINDS, LOOPS, expected, script
from bench.capture.peer import MACHINES, named
from bench.faults.results import FOLDER, read_result, write_result
from plumbline.schema.errors import PlumblineError

RESULT = FOLDER / "capture-loops.json"
RUNS = ("0-honest", "1-again", *KINDS)
HERE, OTHER = "equal machine", "avx2, two threads"


def train(folder: Path) -> None:
    """Train with each script in a folder, in this process; a script that fails leaves no record."""
    import torch

    is_other = folder.parent.name == OTHER
    torch.backends.cuda.enable_flash_sdp(not is_other)  # on a CPU, too
    for path in sorted(folder.glob("*.py")):
        sys.argv = [str(path), str(path.with_suffix(""))]
        torch.manual_seed(0)
        try:
            runpy.run_path(str(path), {"START": str(folder.parents[1] / f"{folder.name}.safetensors")}, "__main__")
        except Exception:  # noqa: BLE001 - a planted script may raise anything; its row then says that it has no record
            traceback.print_exc()


def run(work: Path, name: str, machine: str, faults: Iterable[str] = RUNS) -> None:
    """Write the scripts of a loop, and train with them on a machine, the honest one first."""
    folder = work / machine / name
    folder.mkdir(parents=True)
    for fault in faults:
        text = script(name, fault if fault in KINDS else "", is_other=machine == OTHER)
        (folder / f"{fault}.py").write_text(text, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if name == "processes" else []
    variables = {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", "PLUMBLINE_ROUND": name}
    with (folder / "log").open("w") as log:
        subprocess.run(
            [sys.executable, *launcher, "-m", "bench.capture.loops", "--train", str(folder)], check=False, timeout=900,
            env=os.environ | variables | (MACHINES[OTHER] if machine == OTHER else {}), stdout=log, stderr=log,
        )  # fmt: skip


def judged(work: Path, name: str) -> list[dict[str, Any]]:
    """Judge each record of a loop beside the honest one and alone."""
    rows = []
    first = plumbline.read_record(work / HERE / name / "0-honest")
    for machine in (HERE, OTHER):
        for fault in RUNS:
            row: dict[str, Any] = {"loop": name, "machine": machine, "fault": fault}
            rows.append(row)
            try:
                record = plumbline.read_record(work / machine / name / fault)
            except PlumblineError as error:
                row["problem"] = str(error)
                continue
            judgement = plumbline.compare(first, record, throughput=False)
            row |= {"beside": named(judgement), "alone": named(plumbline.judge_alone(record))}
            if fault in KINDS:
                code, step, place = expected(name, fault)
                at = judgement.first_divergence
                row["detected"] = judgement.verdict == "drift"
                row["kind"] = bool(judgement.causes) and judgement.causes[0].code == code
                captured = record.record.evidence.captured
                shown = [each for each in captured.recorded if each >= step] if captured and machine == OTHER else []
                row["placed"] = at is not None and at.step in (step, *shown[:1]) and place in at.at
            else:
                row["flagged"] = (row["beside"], row["alone"]) != ("pass", "pass")
    return rows


def totals(rows: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Count by machine what was detected, its kind and its place, and the honest runs that were flagged."""
    keys = ("detected", "kind", "placed", "flagged", "problem")
    counts = {}
    for machine in (HERE, OTHER):
        own = [row for row in rows if row["machine"] == machine]
        counts[machine] = {"faults": sum(row["fault"] in KINDS for row in own)}
        counts[machine] |= {key: sum(bool(row.get(key)) for row in own) for key in keys}
    return counts


def main() -> None:
    """Run the loops that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LOOPS))
    parser.add_argument("--work", type=Path, help="folder in which the records stay")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train)
        return
    work, began = given.work or Path(tempfile.mkdtemp(prefix="loops-")), time.perf_counter()
    for name in given.names or LOOPS:
        if name == "trainer" and find_spec("accelerate") is None:
            print("trainer: not run, accelerate is not installed")
            continue
        for machine in (HERE, OTHER):
            if not (work / machine / name).exists():  # else its records are judged again
                run(work, name, machine)
        rows = [row for row in read_result(RESULT)["cells"] if row["loop"] != name] + judged(work, name)
        rows.sort(key=lambda row: list(LOOPS).index(row["loop"]))
        seconds = round(time.perf_counter() - began)
        write_result(RESULT, "python -m bench.capture.loops", rows, seconds=seconds, totals=totals(rows))
    print(json.dumps(totals(read_result(RESULT)["cells"]), indent=1))


if __name__ == "__main__":
    main()
