"""Speed part, Hugging Face's Trainer and a bare loop on equal settings, alternating.

    PYTHONPATH=.:.venv/peers python bench/train/throughput.py --out bench/results/train-throughput.json

Each of `SETTINGS` is measured on its own; `--settings` chooses. The largest wait of our loop for a batch stands beside
its median step. The Trainer needs `accelerate` (`make .venv/peers`). Where that is missing, or the Trainer fails, it is
left out, and the result says why. Two more variants answer two more questions: `unobserved` is our loop without log,
clock and sampler (what does evidence cost?), and `strict` is that loop under strict determinism (what does that cost?).
All live in one process and take turns of a few steps; ratios are taken within a round, so that what the machine does to
all of them falls out. Each ratio is a median with its 95% interval (bootstrap over rounds). `cpu` is the time that the
process computed, which a busy machine does not stretch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.faults.results import machine
from bench.train.peers import PeerFailedError, Step, bare, trainer
from bench.train.workload import Workload
from plumbline.environments.launch import DETERMINISM
from plumbline.train.context import Context
from plumbline.train.engine import Engine, Observer
from plumbline.train.machine.clock import StepClock
from plumbline.train.machine.sampler import Sampler
from plumbline.train.numerics import apply_settings
from plumbline.train.speed_engine import compile_model, make_engine
from plumbline.train.watch.step_log import StepLogger

WARMUP = 8
TURN = {"cuda": 4, "cpu": 1}
"""Steps of a turn: a device runs ahead of its host, and is waited for at the end of each turn."""
RESAMPLES = 2000
WAITS: list[float] = []
SETTINGS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "compile": {"compile": True},
    "checkpointing": {"gradient_checkpointing": True},
    "workers": {"data_workers": 2},
    "longest": {"padding": "longest"},
    "packed": {"padding": "packed"},
}
"""Rows can be packed in masked language modelling only."""


def _engine(context: Context, total: int, clock: StepClock | None) -> tuple[Engine, Any]:
    spec, speed = context.spec, context.spec.speed
    context.prepare(speed.steps)
    engine = make_engine(context, spec, speed, dropout=speed.dropout, steps=total, ranks=context.ranks, clock=clock)
    compile_model(engine, speed)
    return engine, enumerate(
        context.batches(
            first=0, count=total, cycle=speed.steps, num_workers=speed.data_workers,
            prefetch_factor=speed.prefetch_factor, pin_memory=speed.pin_memory,
        )
    )  # fmt: skip


@contextlib.contextmanager
def ours(context: Context, total: int) -> Iterator[Step]:
    """Run the product's speed part, with log, clock and sampler."""
    clock = StepClock(context.ranks.device)
    engine, batches = _engine(context, total, clock)
    engine.observer = Observer(StepLogger(engine))

    def step() -> None:
        clock.start()
        asked = time.perf_counter()
        place, batch = next(batches)
        WAITS.append(time.perf_counter() - asked)
        clock.mark("data_wait")
        engine.step(place, batch)
        clock.stop()

    with Sampler(context.ranks.device):
        yield step


@contextlib.contextmanager
def unobserved(context: Context, total: int) -> Iterator[Step]:
    """Run our loop without an observer."""
    engine, batches = _engine(context, total, None)
    yield lambda: void(engine.step(*next(batches)))


def void(_: object) -> None:
    """Do nothing after a step."""


VARIANTS = {"ours": ours, "bare": bare, "unobserved": unobserved, "strict": unobserved}
if importlib.util.find_spec("accelerate") is not None:
    VARIANTS["trainer"] = trainer


def _seconds(step: Step, device: torch.device) -> tuple[float, float]:
    """Return wall and CPU seconds of the steps."""
    each = TURN[device.type]
    if device.type == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(each):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - wall) / each, (time.process_time() - cpu) / each


def measure(context: Context, rounds: int) -> tuple[list[dict[str, dict[str, float]]], list[str]]:
    """Return each variant's seconds per round, and reasons of skipped variants.

    A round gives each a turn, every other round in reverse.
    """
    precision, device = context.spec.speed.precision, context.ranks.device
    total = TURN[device.type] * (WARMUP + rounds)
    result = []
    left_out = [] if "trainer" in VARIANTS else ["trainer: accelerate is not installed (make .venv/peers)"]
    with contextlib.ExitStack() as stack:
        steps = {name: stack.enter_context(make(context, total)) for name, make in VARIANTS.items()}
        for place in range(WARMUP + rounds):
            seconds = {}
            for name in list(steps) if place % 2 == 0 else list(steps)[::-1]:
                apply_settings(precision, strict=name == "strict", part="bench", speed=context.spec.speed)
                try:
                    wall, cpu = _seconds(steps[name], device)
                except PeerFailedError as error:
                    left_out.append(f"{name}: {error}")
                    del steps[name]
                    continue
                seconds[name] = {"wall": wall, "cpu": cpu}
            result.append(seconds)
    return result[WARMUP:], left_out


def _ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    asked = {
        "ours/bare": ("ours", "bare"),
        "ours/trainer": ("ours", "trainer"),
        "evidence (ours/unobserved)": ("ours", "unobserved"),
        "strict/default": ("strict", "unobserved"),
    }
    result: dict[str, Any] = {}
    for name, (item, other) in asked.items():
        for clock in ("wall", "cpu"):
            values = [r[item][clock] / r[other][clock] for r in rounds if item in r and other in r]
            if values:
                result.setdefault(name, {})[clock] = {"median": statistics.median(values), "95%": interval(values)}
    return result


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95% interval of the median, by a bootstrap of a fixed seed."""
    drawn = np.random.default_rng(1).choice(values, (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", default="fp32", help="of the settings that name none")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    # Read when cuBLAS is first used; `strict` is refused on a GPU without it, and all variants share one process.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", DETERMINISM["CUBLAS_WORKSPACE_CONFIG"])
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name in arguments.settings:
            task = "masked-lm" if name == "packed" else "sequence-classification"
            workload = Workload(Path(folder) / task, arguments.size, arguments.length, task=task)
            speed = {"steps": 40, "precision": arguments.precision, **SETTINGS[name]}
            with workload.context(workload.spec(arguments.batch_size, speed=speed)) as context:
                WAITS.clear()
                rounds, left_out = measure(context, arguments.rounds)
            found[name] = {
                "speed": speed,
                "left_out": left_out,
                "largest_wait": max(WAITS[WARMUP:]) / statistics.median(r["ours"]["wall"] for r in rounds),
                "ratios": _ratios(rounds),
            }
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    result = {
        "machine": machine(),
        "workload": {key: str(value) for key, value in vars(arguments).items() if key != "out"},
        "settings": found,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
