"""`python -m bench.faults.applied --held-out 5 [--name NAME ...]`: check that each fault changes its own evidence.

Trains with and without the fault, and compares the recorded digests; the judge does not run. A fault applies if the
training runs to its end and evidence of the kind that it names differs. A control applies if the training runs to its
end with losses and gradient norms close to the reference's. Trainings are shorter than the benchmark's: one
portable step, no envelope, and a learning curve of 40 steps.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import plumbline.train.job  # noqa: F401 - loaded once, before the forks
from bench.faults.catalogue import Entry, _function
from bench.faults.forkserver import _run as run_job
from bench.faults.held_out import SETS
from bench.faults.portable_bits import bits_of
from bench.faults.trainer import Side
from bench.faults.world import World
from plumbline.launch import run_training
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.evidence import LearnEvidence, ProbeEvidence, StepEvidence
from plumbline.schema.production import ProductionEvidence, ProductionStep, SpeedTrail
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import read_spec, write_spec

_STEP = ("forward", "logits", "loss", "definition", "gradients", "clipped", "weights")
_OWN: dict[str, tuple[str, ...]] = {
    "data.content": ("rows.text",),
    "data.labels": ("rows.label", "batch.labels", "learn.batches"),
    "data.order": ("batch.row_ids", "learn.batches"),
    "tokenization": ("batch.input_ids", "batch.attention_mask", "batch.token_type_ids", "learn.batches"),
    "model.architecture": ("parameters",),
    "weights.init": ("values", "learn.losses"),
    "rng": ("rng", "forward", "batch.labels", "learn.losses"),
    "precision": (*_STEP, "learn.losses"),
    "operator": ("forward", "logits", "speed.loss", "learn.losses"),
    "kernel": _STEP,
    "loss": ("definition", "learn.losses"),
    "gradient": ("gradients", "clipped", "learn.losses"),
    "optimizer": ("weights", "learn.losses"),
    "schedule": ("rates", "learn.rates"),
    "evaluation": ("evaluation", "learn.evaluations"),
    "nondeterminism": ("batch.row_ids", *_STEP, "learn.losses"),
}
"""Kinds of evidence of which at least one differs under a fault of this cause.

The replay of packed rows has no outputs of modules: an operator shows in the loss of `speed` alone.
"""


def _definition(step: StepEvidence | ProductionStep) -> bool:
    """Return whether a step's loss differs from its definition."""
    loss, expected = step.loss, step.loss_reference
    return loss is not None and expected is not None and not math.isclose(loss, expected, rel_tol=1e-5)


def _of_step(left: StepEvidence, right: StepEvidence) -> Iterator[str]:
    if left.rng != right.rng:
        yield "rng"
    yield from (f"batch.{name}" for name in left.batch if left.batch[name] != right.batch.get(name))
    for name, key in (
        ("logits", "logits_sha256"), ("loss", "loss"), ("gradients", "gradients_sha256"),
        ("clipped", "gradient_norm_clipped"), ("rates", "learning_rates"), ("weights", "weights_sha256"),
    ):  # fmt: skip
        if getattr(left, key) != getattr(right, key):
            yield name
    if _definition(left) != _definition(right):
        yield "definition"


def _of_learn(left: LearnEvidence, right: LearnEvidence) -> Iterator[tuple[str, int]]:
    for name, mine, others in (
        ("batches", left.batches, right.batches), ("losses", left.losses, right.losses),
        ("rates", left.learning_rates, right.learning_rates),
        ("evaluations", left.evaluations, right.evaluations), ("dropout", (left.dropout,), (right.dropout,)),
    ):  # fmt: skip
        places = [place for place, (one, two) in enumerate(zip(mine, others, strict=False)) if one != two]
        if places:
            yield f"learn.{name}", places[0]


def _of_inputs(left: LoadedRecord, right: LoadedRecord) -> Iterator[str]:
    """Yield what differs in the rows read and in the model built."""
    for name in ("text", "label"):
        if not np.array_equal(left.rows[name], right.rows[name]):
            yield f"rows.{name}"
    ours, theirs = left.record.evidence.model, right.record.evidence.model
    if ours and theirs:
        shapes = [[(p.name, p.shape, p.tied_to) for p in model.parameters] for model in (ours, theirs)]
        if shapes[0] != shapes[1]:
            yield "parameters"
        elif ours.parameters != theirs.parameters:
            yield "values"


def _of_probe(left: ProbeEvidence, right: ProbeEvidence) -> Iterator[tuple[str, int]]:
    """Yield the kind and step of each difference, in order."""
    digests = {(tap.step, tap.stage, tap.name): tap.sha256 for tap in right.taps}
    for tap in left.taps:
        if tap.stage == "forward" and digests.get((tap.step, tap.stage, tap.name)) != tap.sha256:
            yield "forward", tap.step
    for mine, other in zip(left.steps, right.steps, strict=False):
        yield from ((kind, mine.step) for kind in _of_step(mine, other))
    if left.evaluation != right.evaluation:
        yield "evaluation", len(left.steps)


def _of_trail(left: SpeedTrail, right: SpeedTrail) -> Iterator[tuple[str, int]]:
    """Yield the kind and step of the first difference of each kind in what `speed` trained."""
    pairs: dict[str, tuple[Any, Any]] = {
        "loss": (left.losses, right.losses), "rates": (left.learning_rates, right.learning_rates),
        "gradients": (left.gradient_norms, right.gradient_norms), "rng": (left.generators, right.generators),
        "weights": (left.weights, right.weights), "apart": (left.apart, right.apart),
    }  # fmt: skip
    pairs |= {f"batch.{name}": (marks, right.marks.get(name, ())) for name, marks in left.marks.items()}
    for name, (mine, others) in pairs.items():
        # The last weights and generators are those after a number of steps that the machine decides.
        is_numbered = name in {"weights", "rng"}
        known = [(one, two) for one, two in zip(mine, others, strict=False) if not is_numbered or one[0] == two[0]]
        places = [place for place, (one, two) in enumerate(known) if one != two]
        if places:
            yield ("values" if name == "weights" and not places[0] else name), places[0]


def _of_replay(left: ProductionEvidence, right: ProductionEvidence) -> Iterator[tuple[str, int]]:
    """Yield what differs in the replay of the first steps of `speed`."""
    digests = {(tap.stage, tap.name): tap.sha256 for tap in right.taps}
    for tap in left.taps:
        if digests.get((tap.stage, tap.name)) != tap.sha256:
            yield ("forward" if tap.stage == "forward" else "gradients"), 0
    for mine, other in zip(left.steps, right.steps, strict=False):
        if _definition(mine) != _definition(other):
            yield "definition", mine.step
        if mine.gradient_norm_clipped != other.gradient_norm_clipped:
            yield "clipped", mine.step
        if (mine.update_excess or 0.0) <= 1.0 < (math.inf if other.update_excess is None else other.update_excess):
            yield "update", mine.step


def differences(left: LoadedRecord, right: LoadedRecord) -> dict[str, int]:
    """Return the first step of each kind of evidence that differs."""
    first = dict.fromkeys(_of_inputs(left, right), 0)
    ours, theirs = left.record.evidence, right.record.evidence
    if ours.probe and theirs.probe:
        for kind, step in _of_probe(ours.probe, theirs.probe):
            first.setdefault(kind, step)
    found: list[tuple[str, int]] = []
    if ours.speed and theirs.speed and ours.speed.trail and theirs.speed.trail:
        found += _of_trail(ours.speed.trail, theirs.speed.trail)
    if ours.speed and theirs.speed and ours.speed.production and theirs.speed.production:
        found += _of_replay(ours.speed.production, theirs.speed.production)
    for kind, step in found:
        first.setdefault(f"speed.{kind}", step)
    if ours.learn and theirs.learn:
        first |= dict(_of_learn(ours.learn, theirs.learn))
    return first


def _error(left: LoadedRecord, right: LoadedRecord) -> float:
    """Return the largest relative difference of losses and gradient norms."""
    pairs: list[tuple[float | None, float | None]] = []
    probes, curves = zip(
        *((item.record.evidence.probe, item.record.evidence.learn) for item in (left, right)), strict=True
    )
    if all(probes):
        for ours, theirs in zip(probes[0].steps, probes[1].steps, strict=False):
            pairs += [(ours.loss, theirs.loss), (ours.gradient_norm, theirs.gradient_norm)]
    speeds = [item.record.evidence.speed for item in (left, right)]
    trails = [speed.trail for speed in speeds if speed and speed.trail]
    if len(trails) == len(speeds):
        pairs += zip(trails[0].losses[:10], trails[1].losses[:10], strict=False)
    if all(curves):
        pairs += zip(curves[0].losses, curves[1].losses, strict=False)
    return max(math.inf if None in pair else abs(pair[0] - pair[1]) / abs(pair[0]) for pair in pairs)


def _verdict(entry: Entry, first: dict[str, int], error: float) -> bool:
    if not entry.expected:
        return error < 1e-4
    return all(any(kind in first or f"speed.{kind}" in first for kind in _OWN[code]) for code in entry.causes)


class Bench:
    """Trainings in forks of this process, with a reference per workload."""

    def __init__(self, root: Path, seed: int) -> None:
        self._world, self._seed, self._root = World(root / "world"), seed, root
        self._references: dict[str, LoadedRecord] = {}

    def _spec(self, workload: str) -> Path:
        """Write the workload's spec with fewer steps of the costly parts."""
        path = self._root / f"{workload}.json"
        if not path.is_file():
            spec = read_spec(self._world.spec(workload, self._seed))
            learn = spec.learn and spec.learn.replace(steps=40, evaluate_every=16, checkpoint_every=20)
            probe = spec.probe and spec.probe.replace(envelope_seeds=0, portable_steps=1)
            write_spec(spec.replace(probe=probe, learn=learn), path)
        return path

    def _train(self, side: Side, name: str) -> LoadedRecord | None:
        out = self._root / name
        if side.processes:
            run_training(
                side.spec, out, data=side.data, cache=self._root / "cache", platform=side.platform, record_id=name,
                environment={"OMP_NUM_THREADS": "1", **side.environment}, timeout_seconds=300,
                num_processes=side.processes,
            )  # fmt: skip
            return load_record(out) if (out / RECORD_NAME).is_file() else None
        job = {
            "arguments": [
                str(side.spec), str(out), "--data", side.data, "--cache", str(self._root / "cache"),
                "--platform", side.platform, "--record-id", name,
            ],
            "inject": side.inject, "environment": side.environment, "record_id": name, "cores": [],
            "log": str(self._root / f"{name}.log"),
        }  # fmt: skip
        run_job(job)
        return load_record(out) if (out / RECORD_NAME).is_file() else None

    def check(self, entry: Entry) -> dict[str, Any]:
        """Return what differs under one fault."""
        processes = 2 if entry.setting == "two processes" else 0
        # A fault is compared with a training of as many processes, a control with one of a single process.
        key = f"{entry.workload}-{processes if entry.expected else 0}"
        clean = Side(self._spec(entry.workload), self._world.data, "left", processes=processes if entry.expected else 0)
        if key not in self._references:
            reference = self._train(clean, f"reference-{key}")
            assert reference is not None
            self._references[key] = reference
        reference = self._references[key]
        data = clean.data
        if entry.alter:
            read = reference.rows["row_id"].tolist()
            data = self._world.altered(entry.name, entry.workload, _function(entry.alter), read, self._seed)
        side = replace(
            clean, data=data, platform="right", inject=entry.inject, environment=entry.environment, processes=processes
        )
        result = self._train(side, entry.name)
        if result is None:
            log = self._root / f"{entry.name}.log"
            lines = log.read_text(encoding="utf-8").strip().splitlines() if log.is_file() else ["no record"]
            return {"name": entry.name, "applies": False, "why": lines[-1][:300]}
        if entry.expected == "nondeterminism":
            again = self._train(side, f"{entry.name}-again")
            reference = again or reference
        first, error = differences(reference, result), _error(reference, result)
        ending, probe = result.record.exit, result.record.evidence.probe
        applies = ending.status == "completed" and _verdict(entry, first, error)
        return {
            "name": entry.name, "expected": entry.expected, "applies": applies, "first": first, "error": error,
            "why": ending.message, "unportable": probe.portable.unportable if probe and probe.portable else "",
            "portable": bits_of(reference, result).to_json(), "lost": dict(probe.lost_legs) if probe else {},
        }  # fmt: skip


def main() -> int:
    """Check the requested entries; return 1 if a fault does not apply."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.applied", description=__doc__)
    parser.add_argument("--held-out", type=int, required=True, choices=[held.number for held in SETS])
    parser.add_argument("--name", action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="`i/n` checks every n-th entry, from i on")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no entry after this")
    args = parser.parse_args()
    at, parts = map(int, args.part.split("/"))
    entries = [item for item in SETS[args.held_out - 1].entries if not args.name or item.name in args.name][at::parts]
    until, failed = time.monotonic() + args.seconds, 0
    with tempfile.TemporaryDirectory(prefix="plumbline-applied-") as folder:
        bench = Bench(Path(folder), args.seed)
        for entry in entries:
            if time.monotonic() > until:
                break
            result = bench.check(entry)
            failed += not result["applies"]
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
