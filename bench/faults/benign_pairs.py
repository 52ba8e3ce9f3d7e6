"""`python -m bench.faults.benign_pairs`: benign differences at production settings, judged pair by pair.

Each setting trains all three parts once, at each precision; every pair of settings of one precision is compared. A pair
whose bits are equal in all parts proves nothing and is counted apart. `bench/results/benign-pairs.json` holds every
pair with its verdict, and what explained its different bits. Pairs of earlier runs stay, unless they are judged again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.faults.bench import two_cores
from bench.faults.machine import commit, machine
from bench.faults.trainer import Side, Trainer
from bench.faults.world import EVALUATION_ROWS, LENGTH, World
from plumbline.data.shards import store_bytes
from plumbline.digest import canonical_json
from plumbline.judge import compare
from plumbline.judge.native import rounds_differently
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.manifest import Shard
from plumbline.schema.spec import RunSpec, read_spec, write_spec

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "benign-pairs.json"
PRECISIONS = ("fp32", "bf16", "fp16")
PARTS = ("probe", "speed", "learn")
_SPLITS = ("train", "evaluation")

HARMLESS = {
    "NCCL_DEBUG": "INFO", "KMP_BLOCKTIME": "0", "TORCH_LOGS": "", "MKL_VERBOSE": "0", "CUDA_HOME": "/opt/cuda",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two-threads": {"inject": "controls.two_threads"},
    "three-threads": {"inject": "controls.three_threads"},
    "avx2": {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
    "no-vector-isa": {"environment": {"ATEN_CPU_CAPABILITY": "default"}},
    "onednn-avx2": {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
    "mkl-compatible": {"environment": {"MKL_CBWR": "COMPATIBLE"}},
    "without-onednn": {"inject": "controls.without_mkldnn"},
    "other-attention": {"inject": "controls.other_attention"},
    "other-optimizer": {"inject": "controls.foreach_everywhere"},
    "compiled": {"inject": "controls.other_compiler"},
    "harmless-variables": {"environment": HARMLESS},
    "variables-and-threads": {"inject": "controls.two_threads", "environment": HARMLESS},
    "re-published-data": {"re-published": True},
    "re-published-and-avx2": {"re-published": True, "environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
}  # fmt: skip


def spec_of(world: World, precision: str) -> Path:
    """Write the RunSpec of all parts at a precision; the probe stays strict fp32."""
    plain = read_spec(world.spec("cls", 1))
    every = {"steps": 10, "precision": precision}
    spec = RunSpec.model_validate({
        **plain.to_json(), "workload": f"benign-{precision}", "batch_size": 8,
        "data": {**plain.data.to_json(), "sequence_length": LENGTH},
        "probe": {"steps": 6, "portable_steps": 4, "evaluation_rows": EVALUATION_ROWS},
        "speed": {**every, "production_steps": 2},
        "learn": {**every, "evaluate_every": 5, "checkpoint_every": 10, "evaluation_rows": EVALUATION_ROWS},
    })  # fmt: skip
    path = world.root / "specs" / f"benign-{precision}.json"
    write_spec(spec, path)
    return path


def _republished(world: World) -> str:
    """Return the URL of the same rows in Parquet files of other bytes."""
    source, folder = world.root / "data", world.root / "re-published"
    if not folder.is_dir():
        shutil.copytree(source / "weights", folder / "weights", copy_function=os.link)
        shutil.copytree(source / "labelled", folder / "labelled")
        manifest = world.manifests["labelled"]
        changed = {split: tuple(_rewritten(folder, shard) for shard in getattr(manifest, split)) for split in _SPLITS}
        (folder / "labelled" / "manifest.json").write_bytes(canonical_json(manifest.replace(**changed).to_json()))
    return f"file://{folder}"


def _rewritten(folder: Path, shard: Shard) -> Shard:
    """Write a shard with another compression, under a new key."""
    base, sink = folder / "labelled", io.BytesIO()
    pq.write_table(pq.read_table(base / shard.key), sink, compression="gzip")
    split, name = shard.key.split("/")
    file = store_bytes(base, f"{split}/{name[:5]}", ".parquet", sink.getvalue())
    return shard.replace(**file.model_dump())


def _bits(record: LoadedRecord) -> dict[str, Any]:
    """Return what equal runs of a part have in common."""
    evidence = record.record.evidence
    probe, speed, learn = evidence.probe, evidence.speed, evidence.learn
    return {
        "probe": probe and [step.weights_sha256 for step in probe.steps] + [step.loss for step in probe.steps],
        "speed": speed and speed.trail and [*speed.trail.losses[:16], *speed.trail.weights[:16]],
        "learn": learn and [*learn.losses, learn.weights_sha256],
    }


def _judged(left: LoadedRecord, right: LoadedRecord) -> dict[str, Any]:
    """Compare two trainings both ways, as each platform may be the reference."""
    sides = _bits(left), _bits(right)
    changed = [part for part in PARTS if sides[0][part] != sides[1][part]]
    ways = [compare(left, right, throughput=False), compare(right, left, throughput=False)]
    return {
        "verdicts": [way.verdict for way in ways],
        "changed": changed,
        "explained": {
            part: [sentence_of(why) for why in rounds_differently(left.record, right.record, part)[:2]]
            for part in PARTS
        },
        "why": [sentence_of(cause.why)[:200] for way in ways for cause in way.causes],
        "at": [f"{way.first_divergence.stage} {way.first_divergence.at}" for way in ways if way.first_divergence],
    }


def _train_all(
    world: World, root: Path, todo: list[tuple[str, str]], on_record: Callable[[str, str, LoadedRecord], None]
) -> None:
    specs = {precision: spec_of(world, precision) for precision in dict.fromkeys(each for each, _ in todo)}
    waiting, lock, republished = list(reversed(todo)), threading.Lock(), _republished(world)

    def drive(core: int) -> None:
        with Trainer(core, root / f"work-{core}") as trainer:
            while True:
                with lock:
                    if not waiting:
                        return
                    precision, name = waiting.pop()
                # A trainer keeps no record of a name that it trains again.
                record_id = f"{precision}-{name}"
                keys = dict(SETTINGS[name])
                data = republished if keys.pop("re-published", False) else world.data
                record = trainer.train(Side(specs[precision], data, "here", **keys), record_id)
                if record is None or record.record.exit.status != "completed":
                    log = (trainer.folder / f"{record_id}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{precision} {name} did not complete:\n{log}")
                on_record(precision, name, record)

    threads = [threading.Thread(target=drive, args=(core,)) for core in two_cores()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> int:
    """Train every setting, judge every pair; return 1 if a pair is flagged."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.benign_pairs", description=__doc__)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    names = args.settings.split(",")
    todo = [(precision, name) for precision in args.precisions.split(",") for name in names]
    known = json.loads(args.out.read_bytes())["cells"] if args.out.is_file() else []
    book, lock = _Book(args.out, known), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="plumbline-benign-") as folder:
        root = Path(folder)

        def keep(precision: str, name: str, record: LoadedRecord) -> None:
            sys.stderr.write(f"{precision} {name}: {record.record.seconds:.1f} s\n")
            with lock:
                book.add(precision, name, record)

        _train_all(World(root / "world"), root, todo, keep)
    sys.stdout.write(f"{book.num_changed} of {len(book.pairs)} pairs changed a bit, {book.num_flagged} flagged\n")
    return 1 if book.num_flagged else 0


class _Book:
    """Pairs of all trainings so far, and of earlier runs, written after each training."""

    def __init__(self, path: Path, known: list[dict[str, Any]]) -> None:
        self._path, self.pairs = path, known
        self._records: dict[str, dict[str, LoadedRecord]] = {}

    def add(self, precision: str, name: str, record: LoadedRecord) -> None:
        """Judge a training beside each earlier one of its precision."""
        others = self._records.setdefault(precision, {})
        order = list(SETTINGS)
        for other, before in others.items():
            sides = sorted(((name, record), (other, before)), key=lambda side: order.index(side[0]))
            names, records = ([side[at] for side in sides] for at in (0, 1))
            self.pairs = [each for each in self.pairs if (each["precision"], each["pair"]) != (precision, names)]
            self.pairs.append({"precision": precision, "pair": names, **_judged(*records)})
        others[name] = record
        self._write()

    @property
    def num_changed(self) -> int:
        """Return the number of pairs with a different bit."""
        return sum(bool(pair["changed"]) for pair in self.pairs)

    @property
    def num_flagged(self) -> int:
        """Return the number of pairs without two passes."""
        return sum(set(pair["verdicts"]) != {"pass"} for pair in self.pairs)

    def _write(self) -> None:
        order = list(SETTINGS)
        pairs = sorted(self.pairs, key=lambda pair: (pair["precision"], *map(order.index, pair["pair"])))
        document = {
            "command": "python -m bench.faults.benign_pairs", "machine": machine(), "commit": commit(),
            "pairs": len(pairs), "changed_a_bit": self.num_changed, "flagged": self.num_flagged,
            "changed_by_precision": {
                precision: sum(pair["precision"] == precision and bool(pair["changed"]) for pair in pairs)
                for precision in PRECISIONS
            },
            "changed_by_part": {part: sum(part in pair["changed"] for pair in pairs) for part in PARTS},
            "excused_without_a_change": sum(
                bool(pair["explained"][part]) and part not in pair["changed"] for pair in pairs for part in PARTS
            ),
            "cells": pairs,
        }  # fmt: skip
        self._path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
