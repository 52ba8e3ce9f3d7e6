"""`python -m bench.faults.envelope_ablation`: faults and benign changes across kernels, with and without the envelope.

Every candidate is trained on another instruction set or number of threads, beside a reference on the machine's own.
Each pair is judged by `compare` alone, without experiments: as it is; without the envelope of perturbed runs; also
without the recorded distances, by the sketches of the portable leg; with floors alone.
`bench/results/envelope-ablation.json` is written after each pair, and pairs that it holds do not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.faults.bench import Bench, _candidate, _setting
from bench.faults.catalogue import CONTROLS, FAULTS, Entry, _function
from bench.faults.controls import KERNELS as BENIGN
from bench.faults.held_out import SETS
from bench.faults.machine import commit, machine
from bench.faults.trainer import Side, Trainer
from bench.faults.world import EVALUATION_ROWS, LENGTH, World
from plumbline.digest import bounded_name
from plumbline.judge import compare, pair
from plumbline.judge.own_distance import OwnDistances
from plumbline.judge.tolerance import limit
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.train.weights import make_weights

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "envelope-ablation.json"

KERNELS: dict[str, tuple[str, dict[str, str]]] = {
    "avx2": ("", {"ATEN_CPU_CAPABILITY": "avx2"}),
    "no-vector-isa": ("", {"ATEN_CPU_CAPABILITY": "default"}),
    "avx2-two-threads": ("controls.two_threads", {"ATEN_CPU_CAPABILITY": "avx2"}),
}
"""Injector and environment of the candidate's side."""
CASES = ("as_is", "without", "leg", "floors")
_FEW = {"data": 2, "tokenizer": 3, "init": 3, "rng": 3, "nondeterminism": 3, "two": 8}
"""Entries a family; the others, whose evidence is computed numbers, are taken whole up to `_MANY`."""
_MANY = 16


@contextmanager
def ablated(case: str) -> Iterator[None]:
    """Judge without a part of what the limits rest on."""
    if case == "as_is":
        yield
        return
    measured = pair._at
    without = patch.object(pair, "_at", lambda probe, name, at: None if name == "errors" else measured(probe, name, at))
    losses = patch.object(
        pair.Pair, "loss_limit", lambda self, step: self.scale * limit(None, "loss", self.precision, step)
    )
    nothing = {"exact": lambda _self, _index: None, "comparable": lambda _self, _index: None}
    with without, losses:
        if case == "without":
            yield
        elif case == "floors":
            with patch.multiple(OwnDistances, **nothing):
                yield
        else:
            yield


def _without_sample(record: LoadedRecord) -> LoadedRecord:
    """Return a record as if its spec had asked for no envelope."""
    spec, evidence = record.record.spec, record.record.evidence
    assert spec.probe is not None
    assert evidence.probe is not None
    changed = record.record.replace(
        spec=spec.replace(probe=spec.probe.replace(envelope_seeds=0)),
        evidence=evidence.replace(probe=evidence.probe.replace(envelope=None)),
    )
    return replace(record, record=changed)


def judged(reference: LoadedRecord, candidate: LoadedRecord | None) -> dict[str, Any]:
    """Return what each case says of a pair."""
    if candidate is None:
        return {case: {"verdict": "no record", "named": []} for case in CASES}
    return {case: _one(case, reference, candidate) for case in CASES}


def _one(case: str, reference: LoadedRecord, candidate: LoadedRecord) -> dict[str, Any]:
    if case == "leg":
        reference, candidate = _without_sample(reference), _without_sample(candidate)
    with ablated(case):
        judgement = compare(reference, candidate, throughput=False)
        both = pair.Pair(reference, candidate)
        stages = ("forward", "gradient", "weight")
        taps = [tap for step in sorted(both.tap_steps) for stage in stages for tap in both.errors(step, stage)]  # type: ignore[arg-type]
        worst = max(taps, key=lambda tap: tap.ratio, default=None)
        losses = [
            abs(left.loss - right.loss) / abs(left.loss) / both.loss_limit(step)
            for step, (left, right) in enumerate(both.common)
            if left.loss and right.loss
        ]
    at = judgement.first_divergence
    return {
        "verdict": judgement.verdict, "named": [cause.code for cause in judgement.causes],
        "at": f"{at.stage}@{at.step} {at.at}" if at else "",
        "checks": [finding.check for finding in judgement.findings if finding.outcome != "pass"],
        "ratio": worst.ratio if worst and worst.ratio != float("inf") else None,
        "worst": f"{worst.reference.stage} {worst.reference.name} at step {worst.reference.step}" if worst else "",
        "loss_ratio": max(losses, default=None),
    }  # fmt: skip


def entries() -> list[Entry]:
    """Return the sample: faults of all families, numeric ones first, and all benign changes of one process."""
    faults = [*FAULTS, *(each for held in SETS for each in held.faults)]
    controls = [*CONTROLS, *(each for held in SETS for each in held.controls)]
    families: dict[str, list[Entry]] = {}
    for each in faults:
        if each.workload in ("cls", "clip", "mlm", "learn") and not each.environment and each.setting == "":
            families.setdefault("learn" if each.workload == "learn" else each.family, []).append(each)
    chosen: list[tuple[float, Entry]] = []
    for family, members in families.items():
        count = min(_FEW.get(family, 6 if family == "learn" else _MANY), len(members))
        step = len(members) / count
        chosen += [((place + 0.5) / count, members[int(place * step)]) for place in range(count)]
    benign = [
        each for each in controls
        if each.workload in ("cls", "clip", "mlm") and each.setting in ("", "repeat")
        and "ATEN_CPU_CAPABILITY" not in each.environment
    ]  # fmt: skip
    chosen += [((place + 0.5) / len(benign), each) for place, each in enumerate(benign)]
    return [each for _, each in sorted(chosen, key=lambda item: item[0])]


class Runner(Bench):
    """Trainer of the sample, one pair after the other."""

    def reference(self, trainer: Trainer, entry: Entry, seed: int) -> LoadedRecord:
        """Return the record of an undisturbed training, also of an earlier run."""
        return _kept(trainer, f"reference-{entry.workload}-{seed}") or super().reference(trainer, entry, seed)

    def pair(self, trainer: Trainer, entry: Entry, kernel: str) -> dict[str, Any]:
        """Train one candidate on another kernel, and judge it."""
        reference = self.reference(trainer, entry, 1)
        inject, environment = KERNELS[kernel]
        clean, label = self._side(entry, 1), f"{entry.name}-{entry.workload}-{kernel}"
        data = clean.data
        if entry.alter:
            read = reference.rows["row_id"].tolist()
            data = self.world.altered(label, entry.workload, _function(entry.alter), read, 1)
        side = replace(
            clean, data=data, platform="right", inject=",".join(filter(None, (entry.inject, inject))),
            environment={**entry.environment, **environment},
        )  # fmt: skip
        record_id = bounded_name(f"candidate-{label}")
        candidate = _kept(trainer, record_id)
        if candidate is None:
            with _setting(entry, trainer):
                candidate = _candidate(entry, trainer, side, record_id)
        return judged(reference, candidate)


def _kept(trainer: Trainer, record_id: str) -> LoadedRecord | None:
    """Return a record of an earlier run with `--keep`."""
    folder = trainer.folder / record_id
    return load_record(folder) if (folder / RECORD_NAME).is_file() else None


SIZES = {
    "fault": (32, 2, 2, 64), "tiny": (128, 2, 2, 512), "small": (512, 4, 8, 2048),
}  # fmt: skip
"""Width, layers, heads, inner width: the benchmark's, BERT-tiny's and BERT-small's."""


def benign_cells() -> list[dict[str, Any]]:
    """Return the benign pairs at real sizes: probes of 12 steps, in each precision, with and without a portable leg."""
    kernels = [name for name in BENIGN if name != "two-processes"]
    tasks = ("sequence-classification", "masked-lm")
    plain = [
        {"size": size, "task": task, "precision": "fp32", "leg": 8, "kernel": kernel, "seed": seed}
        for seed, size, task, kernel in product((1, 2, 3), ("tiny",), tasks, kernels)
    ]
    small = [
        {"size": "small", "task": task, "precision": "fp32", "leg": 8, "kernel": kernel, "seed": 1}
        for task, kernel in product(tasks, ("avx2", "no-vector-isa", "two-threads", "sdpa"))
    ]
    formats = [
        {"size": size, "task": task, "precision": precision, "leg": 8, "kernel": kernel, "seed": 1}
        for size, precision, task, kernel in product(
            ("fault", "tiny"), ("bf16", "fp16"), tasks, ("avx2", "no-vector-isa", "sdpa", "without-onednn")
        )
    ]
    bare = [
        {"size": "tiny", "task": task, "precision": precision, "leg": 0, "kernel": kernel, "seed": 1}
        for precision, task, kernel in product(("fp32", "bf16"), tasks, ("avx2", "no-vector-isa", "sdpa"))
    ]
    return [*plain[:16], *small[:2], *formats, *bare, *small[2:], *plain[16:]]


class Benign:
    """Trainer of the benign pairs at real sizes."""

    def __init__(self, root: Path, world: World) -> None:
        self.root, self.world = root, world
        self._known: dict[Path, LoadedRecord] = {}

    def _spec(self, cell: dict[str, Any]) -> Path:
        path = self.root / "specs" / f"{'-'.join(str(cell[key]) for key in cell if key != 'kernel')}.json"
        if path.is_file():
            return path
        width, layers, heads, inner = SIZES[cell["size"]]
        manifest = self.world.manifests["plain" if cell["task"] == "masked-lm" else "labelled"]
        model: dict[str, Any] = {
            "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
            "intermediate_size": inner, "max_position_embeddings": 64, "vocab_size": self.world.vocab_size,
            "num_labels": None if cell["task"] == "masked-lm" else 2,
        }  # fmt: skip
        draft = self.root / "weights.part"
        sha256 = make_weights(model, cell["seed"], draft)
        kept = self.root / "world" / "data" / "weights" / f"{sha256}.safetensors"
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(kept)
        spec = RunSpec(
            workload="benign", task=manifest.task,
            model=model | {"weights_key": f"weights/{sha256}.safetensors", "weights_sha256": sha256},
            data={"name": manifest.name, "manifest_sha256": manifest.digest, "sequence_length": LENGTH},
            seed=cell["seed"], batch_size=8, optimizer={"accumulation_steps": 1},
            probe={
                "steps": 12, "evaluation_rows": EVALUATION_ROWS, "precision": cell["precision"],
                "portable_steps": cell["leg"],
            },
        )  # fmt: skip
        write_spec(spec, path)
        return path

    def pair(self, trainer: Trainer, cell: dict[str, Any]) -> dict[str, Any]:
        """Train one candidate with the cell's kernel, and judge it."""
        spec = self._spec(cell)
        clean = Side(spec, self.world.data, "left")
        name = bounded_name(f"reference-{spec.stem}")
        if spec not in self._known:
            record = _kept(trainer, name) or trainer.train(clean, name)
            if record is None:
                raise RuntimeError(f"the reference of {cell} left no record")
            self._known[spec] = record
        side, name = (
            Side(spec, self.world.data, "right", **BENIGN[cell["kernel"]]),
            f"benign-{spec.stem}-{cell['kernel']}",
        )
        return judged(self._known[spec], _kept(trainer, name) or trainer.train(side, name))


def totals(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Count by case: faults detected, with exactly their causes, with a wrong one; benign pairs flagged."""
    found: dict[str, Any] = {}
    for case in CASES:
        faults = [each for each in pairs if each["expected"]]
        benign = [each for each in pairs if not each["expected"]]
        expected = {id(each): each["expected"].split(" + ") for each in faults}
        found[case] = {
            "faults": len(faults), "detected": sum(each[case]["verdict"] == "drift" for each in faults),
            "right": sum(sorted(each[case]["named"]) == sorted(expected[id(each)]) for each in faults),
            "first_right": sum(each[case]["named"][:1] == [expected[id(each)][0]] for each in faults),
            "wrong": sum(bool({*each[case]["named"]} - {*expected[id(each)], "unattributed"}) for each in faults),
            "benign": len(benign), "flagged": [each["pair"] for each in benign if each[case]["verdict"] != "pass"],
            "largest_ratio": max((each[case].get("ratio") or 0.0 for each in benign), default=None),
            "largest_loss_ratio": max((each[case].get("loss_ratio") or 0.0 for each in benign), default=None),
        }  # fmt: skip
    found["differ"] = [
        {"pair": each["pair"], "expected": each["expected"], "as_is": each["as_is"], "without": each["without"]}
        for each in pairs
        if any(each["as_is"].get(key) != each["without"].get(key) for key in ("verdict", "named", "at"))
    ]
    return found


class Book:
    """The result file, written after each pair."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        known = json.loads(path.read_bytes())["pairs"] if path.is_file() else []
        self.pairs: list[dict[str, Any]] = [each for each in known if each.keys() >= {*CASES}]

    def has(self, name: str) -> bool:
        """Return whether a pair is judged."""
        return any(each["pair"] == name for each in self.pairs)

    def add(self, name: str, expected: str, result: dict[str, Any]) -> None:
        """Keep one pair, also on disk."""
        with self._lock:
            self.pairs.append({"pair": name, "expected": expected, **result})
            document = {
                "command": "python -m bench.faults.envelope_ablation", "machine": machine(), "commit": commit(),
                "totals": totals(self.pairs), "pairs": self.pairs,
            }  # fmt: skip
            draft = self._path.with_name(f"{self._path.name}.part")
            draft.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            draft.replace(self._path)
        lines = {case: (result[case]["verdict"], *result[case]["named"]) for case in CASES}
        sys.stderr.write(f"{name} [{expected}]: {lines if len({*lines.values()}) > 1 else lines['as_is']}\n")


def main() -> int:
    """Train and judge what has no result yet, within the time limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.envelope_ablation", description=__doc__)
    parser.add_argument("--only", choices=("faults", "benign"), required=True)
    parser.add_argument("--seconds", type=float, default=36000.0, help="begin no pair after this")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument(
        "--keep", type=Path, help="a folder that keeps the records; those in it are judged again, not trained"
    )
    parser.add_argument("--part", default="0/1", help="every so many-th pair")
    args = parser.parse_args()
    until, book = time.monotonic() + args.seconds, Book(args.out)
    part, parts = map(int, args.part.split("/"))
    with tempfile.TemporaryDirectory(prefix="plumbline-ablation-") as folder:
        root = args.keep or Path(folder)
        with Trainer(0, root / "work-0") as trainer:
            os.sched_setaffinity(trainer._process.pid, range(os.cpu_count() or 1))
            if args.only == "faults":
                runner, kernels = Runner(root), list(KERNELS)
                work = [
                    (f"{entry.name}-{entry.workload} {kernels[(place + turn) % 3]}", entry, kernels[(place + turn) % 3])
                    for turn in range(3) for place, entry in enumerate(entries())
                ]  # fmt: skip
                for name, entry, kernel in work[part::parts]:
                    if time.monotonic() < until and not book.has(name):
                        book.add(name, entry.expected, runner.pair(trainer, entry, kernel))
            else:
                benign = Benign(root, World(root / "world"))
                for cell in benign_cells()[part::parts]:
                    name = "benign " + " ".join(map(str, cell.values()))
                    if time.monotonic() < until and not book.has(name):
                        book.add(name, "", benign.pair(trainer, cell))
    sys.stdout.write(json.dumps(totals(book.pairs), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
