"""World of the benchmark: a dataset of hard texts, specs, and altered copies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults.production import PRODUCTION, doors_spec, production_spec
from plumbline.data.datasets.grammar import reviews
from plumbline.data.datasets.rows import Row
from plumbline.data.datasets.shards import store_bytes, write_shards
from plumbline.data.datasets.tokenizer import train_tokenizer
from plumbline.schema.digest import canonical_json
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import RunSpec, read_spec, write_spec
from plumbline.train.weights import make_weights

TRAIN_ROWS, EVALUATION_ROWS, ROWS_PER_SHARD = 256, 28, 64
STEPS, BATCH, LENGTH = 12, 8, 32
PROBE = {"steps": STEPS, "portable_steps": STEPS, "evaluation_rows": EVALUATION_ROWS}
"""Portable windows cover all steps, as a fault may begin at the last."""
LEARN = {
    "steps": 96, "evaluate_every": 32, "checkpoint_every": 48, "evaluation_rows": EVALUATION_ROWS, "expect": "chance",
}  # fmt: skip
"""The learning curve: three epochs, each with an evaluation."""
Alteration = Callable[["Content", list[int], int], None]

_HARD = str.maketrans({"e": "é", "o": "ö"})


@dataclass
class Content:
    """Dataset in memory, to be altered before publication."""

    train: list[Row]
    evaluation: list[Row]
    tokenizer: dict[str, Any]
    rows_per_shard: int = ROWS_PER_SHARD
    reversed_shards: bool = False

    def edit(self, row: int, change: Callable[[Row], Row]) -> None:
        """Change one row, numbered as in the manifest."""
        split, at = (self.train, row) if row < TRAIN_ROWS else (self.evaluation, row - TRAIN_ROWS)
        split[at] = change(split[at])


def _text(row: Row, place: int) -> str:
    """Accents, wide spaces, capitals and other scripts here and there."""
    text = row.text
    if place % 5 == 1:
        text = text.translate(_HARD)
    if place % 7 == 2:
        text = text.replace(" ", " \u3000", 2)
    if place % 11 == 3:
        text = "中文 " + text.upper()
    return text


class World:
    """All inputs of the trainings, below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        result = list(reviews(11, 0, TRAIN_ROWS + EVALUATION_ROWS))
        rows = [Row(_text(row, place), row.label) for place, row in enumerate(result)]
        data, self.vocab_size = train_tokenizer([row.text for row in rows], 600, lowercase=False)
        self.content = Content(rows[:TRAIN_ROWS], rows[TRAIN_ROWS:], json.loads(data))
        self.manifests = {name: self._publish(self.content, root / "data", name) for name in ("labelled", "plain")}
        self.data = f"file://{root / 'data'}"

    def _publish(self, content: Content, folder: Path, name: str) -> Manifest:
        base = folder / name
        tokenizer = store_bytes(base, "tokenizer", ".json", json.dumps(content.tokenizer).encode())
        labelled = name == "labelled"
        rows = [
            [row if labelled else Row(row.text, None) for row in split] for split in (content.train, content.evaluation)
        ]
        train = write_shards(base, "train", rows[0], 0, content.rows_per_shard)
        evaluation = write_shards(base, "evaluation", rows[1], len(rows[0]), content.rows_per_shard)
        if content.reversed_shards:
            train.reverse()
        manifest = Manifest(
            name=name, task="sequence-classification" if labelled else "masked-lm", num_labels=2 if labelled else None,
            tokenizer=tokenizer, vocab_size=self.vocab_size, train=tuple(train), evaluation=tuple(evaluation),
        )  # fmt: skip
        (base / "manifest.json").write_bytes(canonical_json(manifest.to_json()))
        return manifest

    def altered(self, label: str, workload: str, change: Alteration, read: list[int], seed: int) -> str:
        """Return the URL of a copy of the data, altered by `change`."""
        source = self.content
        content = Content(list(source.train), list(source.evaluation), json.loads(json.dumps(source.tokenizer)))
        change(content, read, seed)
        folder = self.root / "altered" / label
        shutil.rmtree(folder, ignore_errors=True)
        self._publish(content, folder, "plain" if workload == "mlm" else "labelled")
        shutil.copytree(self.root / "data" / "weights", folder / "weights", copy_function=os.link)
        return f"file://{folder}"

    def spec(self, workload: str, seed: int) -> Path:
        """Return the RunSpec of a workload: `cls`, `clip` (clipped more), `mlm`, `learn` (with a curve) or `speed`.

        Those at production settings are in `production`.
        """
        if workload in PRODUCTION:
            return production_spec(self, workload, seed)
        if workload == "doors":
            return doors_spec(self)
        path = self.root / "specs" / f"{workload}-{seed}.json"
        if path.is_file():
            return path
        manifest = self.manifests["plain" if workload == "mlm" else "labelled"]
        wide = workload == "speed"
        model: dict[str, Any] = {
            "hidden_size": 128 if wide else 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 512 if wide else 64, "max_position_embeddings": 64, "vocab_size": self.vocab_size,
            "num_labels": None if workload == "mlm" else 2,
        }  # fmt: skip
        draft = self.root / "weights.part"
        sha256 = make_weights(model, seed, draft)
        kept = self.root / "data" / "weights" / f"{sha256}.safetensors"
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft.replace(kept)
        weights = {"weights_key": f"weights/{sha256}.safetensors", "weights_sha256": sha256}
        spec = RunSpec(
            workload=f"fault-{workload}",
            task=manifest.task,
            model=model | weights,
            data={"name": manifest.name, "manifest_sha256": manifest.digest, "sequence_length": LENGTH},
            seed=seed,
            batch_size=2 * BATCH if wide else BATCH,
            optimizer={
                "max_grad_norm": 0.1 if workload == "clip" else 0.5, "accumulation_steps": 1 if wide else 2,
                "weight_decay": 0.05,
            },
            probe=None if wide else PROBE,
            speed={"steps": 150, "precision": "fp32"} if wide else None,
            learn=LEARN if workload == "learn" else None,
        )  # fmt: skip
        write_spec(spec, path)
        return path

    def derived(self, name: str, base: Path, **changes: Any) -> Path:
        """Write the RunSpec `base` as the workload `name`, with changed keys of its own and of its parts."""
        plain = read_spec(base).to_json()
        path = self.root / "specs" / f"{name}-{plain['seed']}.json"
        if not path.is_file():
            for key, value in changes.items():
                plain[key] = (plain.get(key) or {}) | value if isinstance(value, dict) else value
            write_spec(RunSpec.model_validate({**plain, "workload": name}), path)
        return path
