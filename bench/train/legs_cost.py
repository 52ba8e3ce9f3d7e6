"""`python -m bench.train.legs_cost --out FILE`: cost of the portable legs inside `learn`, from a short real curve.

The process counts its CPU seconds in each step and in each leg, whatever else the machine does. The share of a default
curve of 2,000 steps is that of its legs over its steps. Evaluations are left out, so that it is an upper limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.faults.machine import commit, machine
from bench.train.workload import Workload
from plumbline.schema.portable_parts import curve_places
from plumbline.schema.spec import LearnSpec
from plumbline.train.curve_legs import LegRunner
from plumbline.train.learn import LearnRun

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"length": 128, "batch": 32, "steps": 24}, "base": {"length": 128, "batch": 32, "steps": 4},
}  # fmt: skip
"""Batches of the shipped suites; a step of base takes a CPU half a minute."""


class _Timed:
    """CPU seconds of the steps and of the legs of one curve."""

    def __init__(self) -> None:
        self.legs: list[float] = []
        self.between: list[float] = []
        self._since = 0.0
        plain, timed = LegRunner.before, self

        def before(self: LegRunner, engine: Any, step: int, batch: Any) -> None:
            began = time.process_time()
            if step:
                timed.between.append(began - timed._since)
            plain(self, engine, step, batch)
            timed._since = time.process_time()
            if len(self._found) > len(timed.legs):
                timed.legs.append(timed._since - began)

        LegRunner.before = before  # type: ignore[method-assign]


def measure(size: str, timed: _Timed) -> dict[str, Any]:
    """Train a short curve; return its seconds and the share of the legs in a default curve."""
    chosen = SIZES[size]
    with tempfile.TemporaryDirectory(prefix="plumbline-legs-") as folder:
        workload = Workload(Path(folder), size, chosen["length"])
        learn = {"steps": chosen["steps"], "evaluate_every": chosen["steps"], "evaluation_rows": 8}
        spec = workload.spec(chosen["batch"], learn=learn)
        timed.legs, timed.between = [], []
        with workload.context(spec) as context:
            assert spec.learn is not None
            LearnRun(context, spec.learn).run()
    whole = LearnSpec()
    num_legs = len(curve_places(spec.replace(learn=whole), 1))
    first, later, step = timed.legs[0], statistics.median(timed.legs[1:]), statistics.median(timed.between)
    return {
        "size": size, **chosen, "seconds_of_legs": timed.legs, "seconds_of_steps": timed.between,
        "default_steps": whole.steps, "default_legs": num_legs,
        "share": (first + (num_legs - 1) * later) / (whole.steps * step),
    }  # fmt: skip


def main() -> None:
    """Measure every size, and write the raw results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    arguments = parser.parse_args()
    timed, results = _Timed(), []
    for size in arguments.sizes:
        results.append(measure(size, timed))
        print(
            f"{size}: {results[-1]['default_legs']} legs, {100 * results[-1]['share']:.2f}% of a default curve",
            flush=True,
        )
        document = {"machine": machine(), "commit": commit(), "threads": torch.get_num_threads(), "results": results}
        arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
