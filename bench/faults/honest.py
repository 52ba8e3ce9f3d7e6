"""`python -m bench.faults.honest`: honest trainings of odd settings, none of which may be accused.

Each setting is trained twice alike and once with kernels of a different instruction set. Texts are few, long, equal or
of one label, learning rates are those of a run that diverges, and fp16 starts at a loss scale that overflows.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.faults.catalogue import OTHER_ISA
from bench.faults.production import all_parts
from bench.faults.trainer import Side, Trainer, on_cores
from bench.faults.world import EVALUATION_ROWS, TRAIN_ROWS, Content, World
from plumbline.data.datasets.build import read_manifest
from plumbline.data.datasets.rows import Row
from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of

_FORMATS = (("fp32", "sdpa"), ("bf16", "eager"), ("fp16", "eager"), ("bf16", "sdpa"), ("fp16", "sdpa"))
_RATES = (0.1, 0.3, 1.0)
_KINDS: dict[str, Callable[[Row, Row], Row]] = {
    "one-label": lambda row, _: Row(row.text, 0),
    "equal-rows": lambda _, first: first,
    "few-words": lambda row, _: Row(row.text.split()[0], row.label),
    "long-texts": lambda row, _: Row(" ".join([row.text] * 8), row.label),
}
_DROPOUT = {"one-label": 0.1, "equal-rows": 0.3, "few-words": 0.9, "long-texts": 0.1}
Setting = tuple[str, str, float, str]
"""Precision, attention, learning rate, kind of texts."""


def settings(num: int) -> list[Setting]:
    """Return `num` different settings, spread over all."""
    every = [(*form, rate, kind) for form, rate, kind in itertools.product(_FORMATS, _RATES, _KINDS)]
    return [every[place * len(every) // num] for place in range(num)]


class Honest:
    """Trainings of odd settings, and what the judge says of them."""

    def __init__(self, root: Path) -> None:
        self.world, self._lock, self.num = World(root), threading.Lock(), 0
        self.accused: list[str] = []
        self._data = {kind: self._texts(kind) for kind in _KINDS}

    def _texts(self, kind: str) -> str:
        """Publish the texts of a kind, and return their URL."""

        def change(content: Content, _read: list[int], _seed: int) -> None:
            first = content.train[0]
            for row in range(TRAIN_ROWS + EVALUATION_ROWS):
                content.edit(row, lambda old: _KINDS[kind](old, first))

        all_parts(self.world, "fp32")  # which writes the weights
        return self.world.altered(kind, "cls", change, [], 1)

    def _spec(self, setting: Setting) -> Path:
        precision, attention, rate, kind = setting
        manifest = read_manifest(self.world.root / "altered" / kind / "labelled")
        return self.world.derived(
            f"honest-{'-'.join(map(str, setting))}", all_parts(self.world, precision),
            data={"manifest_sha256": manifest.digest}, optimizer={"learning_rate": rate},
            probe={"steps": 3, "portable_steps": 2}, speed={"attention": attention, "dropout": _DROPOUT[kind]},
            learn={"attention": attention, "dropout": 0.1},
        )  # fmt: skip

    def train(self, trainer: Trainer, setting: Setting) -> None:
        """Train a setting three times, and judge each pair both ways."""
        with self._lock:
            path = self._spec(setting)
        inject = "odd.high_loss_scale" if setting[0] == "fp16" else ""
        side = Side(path, self._data[setting[-1]], "here", inject)
        sides = {"here": side, "again": side, "other": replace(side, environment=OTHER_ISA)}
        name = "-".join(map(str, setting))
        trained = {place: trainer.train(side, f"{name}-{place}") for place, side in sides.items()}
        # At such rates a loss may become NaN, which ends a training.
        records = {place: each for place, each in trained.items() if each and each.record.exit.status == "completed"}
        lines = [f"{name}: {words}" for words in _accusations(records)]
        with self._lock:
            self.num += len(records)
            self.accused += lines
            sys.stdout.write("\n".join([*lines, f"  {name}: {len(records)} judged"]) + "\n")
            sys.stdout.flush()


def _accusations(records: dict[str, LoadedRecord]) -> Iterator[str]:
    """Yield what the judge has against any of the trainings."""
    for left, right in itertools.permutations(records, 2):
        judgement = compare(records[left], records[right], throughput=False)
        if judgement.verdict == "drift" or judgement.causes:
            causes = "; ".join(f"{cause.code}: {sentence_of(cause.why)}" for cause in judgement.causes)
            yield f"{left} beside {right}: {judgement.verdict} {causes}"


def main() -> int:
    """Train all settings; return 1 if a training is accused."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.honest", description=__doc__)
    parser.add_argument("--settings", type=int, default=30, help="number of settings, each trained three times")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plumbline-honest-") as folder:
        honest = Honest(Path(folder))
        on_cores(Path(folder), settings(args.settings), honest.train)
    sys.stdout.write(f"{honest.num} honest trainings, {len(honest.accused)} accusations\n")
    return 1 if honest.accused else 0


if __name__ == "__main__":
    sys.exit(main())
