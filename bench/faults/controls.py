"""`python -m bench.faults.controls`: benign kernels that must pass, by model size, task, accumulation and seed.

Each cell trains twice, once with another kernel, and compares. A cell whose kernel changes no recorded bit proves
nothing and is listed so. `bench/results/controls.json` holds each cell with its largest error in units of its limit;
it is written after each cell, and what is known is not run again: the matrix can be filled in slices (`--seconds`).
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.faults.bench import two_cores
from bench.faults.machine import commit, machine
from bench.faults.portable_bits import bits_of
from bench.faults.trainer import Side, Trainer
from bench.faults.world import EVALUATION_ROWS, LENGTH, World
from plumbline.digest import digest_file
from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.train.weights import make_weights

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "controls.json"

KERNELS: dict[str, dict[str, Any]] = {
    "two-threads": {"inject": "controls.two_threads"},
    "avx2": {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
    "no-vector-isa": {"environment": {"ATEN_CPU_CAPABILITY": "default"}},
    "sdpa": {"inject": "controls.sdpa"},
    "without-onednn": {"inject": "controls.without_mkldnn"},
    "fused-optimizer": {"inject": "controls.fused_optimizer"},
    "foreach-optimizer": {"inject": "controls.foreach_optimizer"},
    "checkpointing": {"inject": "controls.gradient_checkpointing"},
    "two-processes": {"processes": 2},
}
SIZES = {"tiny": (32, 2, 2), "mini": (128, 2, 2), "small": (256, 4, 4)}
"""Width, layers, heads."""


@dataclass(frozen=True)
class Cell:
    """One comparison of the matrix."""

    kernel: str
    size: str
    task: str
    accumulation: int
    seed: int

    @property
    def name(self) -> str:
        """Return the cell's key in the result."""
        return f"{self.kernel}/{self.size}/{self.task}/{self.accumulation}/{self.seed}"


def cells(sizes: list[str], seeds: list[int]) -> list[Cell]:
    """Return all cells, seeds last, so that a slice covers many kinds."""
    kinds = product(seeds, sizes, ("sequence-classification", "masked-lm"), (1, 2), KERNELS)
    return [Cell(kernel, size, task, parts, seed) for seed, size, task, parts, kernel in kinds]


class Matrix:
    """Runner of the matrix, with one reference per kind of training."""

    def __init__(self, root: Path) -> None:
        self.root, self.world = root, World(root / "world")
        self._lock = threading.Lock()

    def spec(self, cell: Cell) -> Path:
        """Write the RunSpec of a cell, the same for all kernels."""
        path = self.root / "specs" / f"{cell.size}-{cell.task}-{cell.accumulation}-{cell.seed}.json"
        with self._lock:
            if path.is_file():
                return path
            width, layers, heads = SIZES[cell.size]
            manifest = self.world.manifests["plain" if cell.task == "masked-lm" else "labelled"]
            model: dict[str, Any] = {
                "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
                "intermediate_size": 4 * width, "max_position_embeddings": 64, "vocab_size": self.world.vocab_size,
                "num_labels": None if cell.task == "masked-lm" else 2,
            }  # fmt: skip
            draft = self.root / "weights.part"
            sha256 = make_weights(model, cell.seed, draft)
            kept = self.root / "world" / "data" / "weights" / f"{sha256}.safetensors"
            kept.parent.mkdir(parents=True, exist_ok=True)
            draft.replace(kept)
            if digest_file(kept) != sha256:
                raise RuntimeError(f"{kept} is damaged")
            weights = {"weights_key": f"weights/{sha256}.safetensors", "weights_sha256": sha256}
            spec = RunSpec(
                workload="control",
                task=manifest.task,
                model=model | weights,
                data={"name": manifest.name, "manifest_sha256": manifest.digest, "sequence_length": LENGTH},
                seed=cell.seed,
                batch_size=8,
                optimizer={"accumulation_steps": cell.accumulation},
                probe={"steps": 8, "evaluation_rows": EVALUATION_ROWS},
            )
            write_spec(spec, path)
            return path

    def judged(self, trainer: Trainer, cell: Cell, known: dict[Path, LoadedRecord]) -> dict[str, Any]:
        """Train with the cell's kernel and compare with the reference."""
        spec = self.spec(cell)
        clean = Side(spec, self.world.data, "left")
        if spec not in known:
            known.clear()
            record = trainer.train(clean, f"reference-{spec.stem}")
            if record is None:
                raise RuntimeError(f"the reference of {cell.name} left no record")
            known[spec] = record
        side = Side(spec, self.world.data, "right", **KERNELS[cell.kernel])
        train = trainer.train_apart if side.processes else trainer.train
        result = train(side, "candidate")
        if result is None:
            return {"cell": cell.name, "verdict": "no record"}
        return {"cell": cell.name, **_measured(known[spec], result)}


def _measured(reference: LoadedRecord, candidate: LoadedRecord) -> dict[str, Any]:
    judgement = compare(reference, candidate)
    pair = Pair(reference, candidate)
    stages = ("forward", "gradient", "weight")
    taps = [tap for step in sorted(pair.tap_steps) for stage in stages for tap in pair.errors(step, stage)]  # type: ignore[arg-type]
    closest = max(taps, key=lambda tap: tap.ratio, default=None)
    changed = any(left.model_dump(exclude={"rng"}) != right.model_dump(exclude={"rng"}) for left, right in pair.common)
    return {
        "verdict": judgement.verdict,
        "changed": changed,
        "ratio": closest.ratio if closest else None,
        "closest": f"{closest.reference.stage} {closest.reference.name} at step {closest.reference.step}"
        if closest and closest.ratio
        else "",
        "portable": bits_of(reference, candidate).to_json(),
        "causes": [cause.code for cause in judgement.causes],
        "why": "; ".join(sentence_of(cause.why) for cause in judgement.causes)[:200],
    }


def _run(
    matrix: Matrix, todo: list[Cell], cores: list[int], until: float, on_result: Callable[[dict[str, Any]], None]
) -> None:
    kinds: dict[tuple[object, ...], list[Cell]] = {}
    for cell in todo:
        kinds.setdefault((cell.seed, cell.size, cell.task, cell.accumulation), []).append(cell)
    work: queue.SimpleQueue[list[Cell]] = queue.SimpleQueue()
    for kind in kinds.values():
        work.put(kind)

    def drive(core: int) -> None:
        known: dict[Path, LoadedRecord] = {}
        with Trainer(core, matrix.root / f"work-{core}") as trainer:
            while time.monotonic() < until:
                try:
                    kind = work.get_nowait()
                except queue.Empty:
                    return
                for cell in kind:
                    if time.monotonic() < until:
                        result = matrix.judged(trainer, cell, known)
                        on_result(result)
                        sys.stderr.write(json.dumps(result) + "\n")

    threads = [threading.Thread(target=drive, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _document(known: list[dict[str, Any]]) -> dict[str, Any]:
    every = [cell.name for cell in cells(list(SIZES), [1, 2, 3, 4, 5])]
    flagged = [one["cell"] for one in known if one["verdict"] != "pass"]
    silent = [one["cell"] for one in known if one["verdict"] == "pass" and not one["changed"]]
    ratios = [one["ratio"] for one in known if one.get("ratio")]
    moved = [one["cell"] for one in known if one.get("portable", {}).get("bits", "equal") != "equal"]
    return {
        "command": "python -m bench.faults.controls", "machine": machine(), "commit": commit(),
        "planned": len(every), "run": len(known), "flagged": sorted(flagged), "changed_no_bit": sorted(silent),
        "changed_portable_bits": sorted(moved), "largest_ratio": max(ratios, default=None),
        "cells": sorted(known, key=lambda one: every.index(one["cell"])),
    }  # fmt: skip


def _write(known: list[dict[str, Any]]) -> None:
    draft = RESULT.with_name(f"{RESULT.name}.part")
    draft.write_text(json.dumps(_document(known), indent=1) + "\n", encoding="utf-8")
    draft.replace(RESULT)


def main() -> int:
    """Fill the matrix within the time limit; return 1 if a cell is flagged."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.controls", description=__doc__)
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--seeds", default="1,2,3,4,5")
    parser.add_argument("--cores", default=",".join(map(str, two_cores())))
    parser.add_argument("--seconds", type=float, default=36000.0, help="begin no cell after this")
    args = parser.parse_args()
    known = json.loads(RESULT.read_bytes())["cells"] if RESULT.is_file() else []
    every = cells(args.sizes.split(","), [int(seed) for seed in args.seeds.split(",")])
    done, lock = {item["cell"] for item in known}, threading.Lock()

    def keep(result: dict[str, Any]) -> None:
        with lock:
            known.append(result)
            _write(known)

    with tempfile.TemporaryDirectory(prefix="plumbline-controls-") as folder:
        cores = [int(core) for core in args.cores.split(",")]
        todo = [cell for cell in every if cell.name not in done]
        _run(Matrix(Path(folder)), todo, cores, time.monotonic() + args.seconds, keep)
    document = _document(known)
    flagged, silent = document["flagged"], document["changed_no_bit"]
    counts = (
        f"{len(known)} of {document['planned']} cells, {len(known) - len(silent)} changed a bit, {len(flagged)} flagged"
    )
    sys.stdout.write(counts + "\n")
    return 1 if flagged else 0


if __name__ == "__main__":
    sys.exit(main())
