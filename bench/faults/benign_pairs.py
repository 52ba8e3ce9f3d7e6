"""`python -m bench.faults.benign_pairs`: benign differences at production settings, judged pair by pair.

Each setting trains all three parts once, at each precision; every pair of settings of one precision is compared. A pair
whose bits are equal in all parts proves nothing and is counted apart. `bench/results/benign-pairs.json` holds every
pair with its verdict. Pairs of earlier runs stay, unless they are judged again.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.faults.production import all_parts
from bench.faults.results import FOLDER, read_cells, write_result
from bench.faults.trainer import Side, Trainer, on_cores
from bench.faults.world import World
from plumbline.data.datasets.shards import store_bytes
from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.digest import canonical_json
from plumbline.schema.manifest import Shard

RESULT = FOLDER / "benign-pairs.json"
PRECISIONS = ("fp32", "bf16", "fp16")
PARTS = ("probe", "speed", "learn")
_SPLITS = ("train", "evaluation")

HARMLESS = {
    "NCCL_DEBUG": "INFO", "KMP_BLOCKTIME": "0", "TORCH_LOGS": "", "MKL_VERBOSE": "0", "CUDA_HOME": "/opt/cuda",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two-threads": {"inject": "benign.two_threads"},
    "three-threads": {"inject": "benign.three_threads"},
    "avx2": {"environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
    "no-vector-isa": {"environment": {"ATEN_CPU_CAPABILITY": "default"}},
    "onednn-avx2": {"environment": {"ONEDNN_MAX_CPU_ISA": "AVX2"}},
    "mkl-compatible": {"environment": {"MKL_CBWR": "COMPATIBLE"}},
    "without-onednn": {"inject": "benign.without_mkldnn"},
    "other-attention": {"inject": "benign.other_attention"},
    "other-optimizer": {"inject": "benign.foreach_everywhere"},
    "compiled": {"inject": "benign.other_compiler"},
    "harmless-variables": {"environment": HARMLESS},
    "variables-and-threads": {"inject": "benign.two_threads", "environment": HARMLESS},
    "re-published-data": {"re-published": True},
    "re-published-and-avx2": {"re-published": True, "environment": {"ATEN_CPU_CAPABILITY": "avx2"}},
}  # fmt: skip


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
        "probe": probe and [*probe.weights, *probe.losses],
        "speed": speed and [*speed.losses[:16], *speed.weights[:16]],
        "learn": learn and [*learn.losses, learn.last_weights],
    }


def _judged(left: LoadedRecord, right: LoadedRecord) -> dict[str, Any]:
    """Compare two trainings both ways, as each platform may be the reference."""
    sides = _bits(left), _bits(right)
    ways = [compare(left, right, throughput=False), compare(right, left, throughput=False)]
    return {
        "verdicts": [way.verdict for way in ways],
        "changed": [part for part in PARTS if sides[0][part] != sides[1][part]],
        "why": [sentence_of(cause.why)[:200] for way in ways for cause in way.causes],
        "at": [f"{way.first_divergence.stage} {way.first_divergence.at}" for way in ways if way.first_divergence],
    }


class _Pairs:
    """Pairs of all trainings so far, and of earlier runs, written after each training."""

    def __init__(self, root: Path, path: Path) -> None:
        self.world, self._path, self.cells = World(root / "world"), path, read_cells(path)
        self._specs = {precision: all_parts(self.world, precision) for precision in PRECISIONS}
        self._republished, self._lock = _republished(self.world), threading.Lock()
        self._records: dict[str, dict[str, LoadedRecord]] = {}

    def train(self, trainer: Trainer, job: tuple[str, str]) -> None:
        """Train a setting at a precision, and judge it beside each earlier one of its precision."""
        precision, name = job
        # A trainer keeps no record of a name that it trains again.
        keys = dict(SETTINGS[name])
        data = self._republished if keys.pop("re-published", False) else self.world.data
        record = trainer.train_completed(Side(self._specs[precision], data, "here", **keys), f"{precision}-{name}")
        with self._lock:
            others, order = self._records.setdefault(precision, {}), list(SETTINGS)
            for other, before in others.items():
                sides = sorted(((name, record), (other, before)), key=lambda side: order.index(side[0]))
                names, records = ([side[at] for side in sides] for at in (0, 1))
                self.cells = [each for each in self.cells if (each["precision"], each["pair"]) != (precision, names)]
                self.cells.append({"precision": precision, "pair": names, **_judged(*records)})
            others[name] = record
            self.cells.sort(key=lambda pair: (pair["precision"], *map(order.index, pair["pair"])))
            write_result(self._path, "python -m bench.faults.benign_pairs", self.cells)


def main() -> int:
    """Train every setting, judge every pair; return 1 if a pair is flagged."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.benign_pairs", description=__doc__)
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    jobs = [(precision, name) for precision in args.precisions.split(",") for name in args.settings.split(",")]
    with tempfile.TemporaryDirectory(prefix="plumbline-benign-") as folder:
        pairs = _Pairs(Path(folder), args.out)
        on_cores(Path(folder), jobs, pairs.train)
    num_changed, num_flagged = sum(bool(each["changed"]) for each in pairs.cells), sum(map(is_flagged, pairs.cells))
    sys.stdout.write(f"{num_changed} of {len(pairs.cells)} pairs changed a bit, {num_flagged} flagged\n")
    return 1 if num_flagged else 0


def is_flagged(pair: dict[str, Any]) -> bool:
    """Return whether a pair does not pass in both directions."""
    return set(pair["verdicts"]) != {"pass"}


if __name__ == "__main__":
    sys.exit(main())
