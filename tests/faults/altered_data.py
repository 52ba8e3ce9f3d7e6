"""Alteration of a published dataset from outside, consistent and silent.

The altered dataset is published whole, with a manifest of its own that its bytes match; nothing but a comparison with
another platform can tell. Used by the suites `deployments/suites/local-drift*.toml` and by the fault benchmark.

    python tests/faults/altered_data.py labels --data URL --dataset NAME [--share 0.01] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from plumbline.data import MANIFEST_NAME, publish, read_manifest
from plumbline.data.rows import Row
from plumbline.data.shards import store_bytes, write_shards
from plumbline.digest import canonical_json
from plumbline.schema.base import read_model
from plumbline.schema.manifest import Manifest, Shard
from plumbline.stores import Store, open_store, read_bytes

__all__ = ["ALTERATIONS", "alter_folder", "alter_store"]

RowChange = Callable[[list[Row], Sequence[int], int], list[Row]]
"""The rows of a split, the places to change, and the number of labels; the altered rows."""


def flip_labels(rows: list[Row], chosen: Sequence[int], num_labels: int) -> list[Row]:
    """Another label on the chosen rows; the text stays."""
    altered = list(rows)
    for index in chosen:
        row = rows[index]
        altered[index] = Row(row.text, (int(row.label or 0) + 1) % num_labels)
    return altered


def drop_word(rows: list[Row], chosen: Sequence[int], num_labels: int) -> list[Row]:  # noqa: ARG001 - one signature
    """The first word of the chosen rows is dropped; the label stays."""
    altered = list(rows)
    for index in chosen:
        words = rows[index].text.split(" ")
        altered[index] = Row(" ".join(words[1:] or ["nothing"]), rows[index].label)
    return altered


def drop_rows(rows: list[Row], chosen: Sequence[int], num_labels: int) -> list[Row]:  # noqa: ARG001 - one signature
    """The chosen rows are gone."""
    gone = set(chosen)
    return [row for index, row in enumerate(rows) if index not in gone]


def double_rows(rows: list[Row], chosen: Sequence[int], num_labels: int) -> list[Row]:  # noqa: ARG001 - one signature
    """The chosen rows stand twice, and push out the last ones."""
    doubled = set(chosen)
    return [twice for index, row in enumerate(rows) for twice in ([row, row] if index in doubled else [row])][
        : len(rows)
    ]


ALTERATIONS: dict[str, RowChange] = {
    "labels": flip_labels,
    "content": drop_word,
    "drop": drop_rows,
    "double": double_rows,
}


def _read_rows(folder: Path, shards: Sequence[Shard]) -> list[Row]:
    rows: list[Row] = []
    for shard in shards:
        table = pq.read_table(folder / shard.key).to_pydict()
        labels = table.get("label", [None] * shard.num_rows)
        rows += [Row(text, label) for text, label in zip(table["text"], labels, strict=True)]
    return rows


def alter_tokenizer(folder: Path, manifest: Manifest) -> Manifest:
    """The same vocabulary behind a normaliser that lower-cases where it did not, or no longer does where it did."""
    content = json.loads((folder / manifest.tokenizer.key).read_bytes())
    content["normalizer"]["lowercase"] = not content["normalizer"]["lowercase"]
    return manifest.replace(tokenizer=store_bytes(folder, "tokenizer", ".json", json.dumps(content).encode()))


def alter_rows(folder: Path, manifest: Manifest, how: str, *, share: float, seed: int, split: str) -> Manifest:
    """A share of the rows of one split changed, at least one, chosen by the seed."""
    shards = manifest.train if split == "train" else manifest.evaluation
    rows = _read_rows(folder, shards)
    count = max(1, round(share * len(rows)))
    chosen = sorted(np.random.Generator(np.random.Philox(seed)).choice(len(rows), count, replace=False).tolist())
    altered = ALTERATIONS[how](rows, chosen, manifest.num_labels or 2)
    first_id = 0 if split == "train" else sum(shard.num_rows for shard in manifest.train)
    written = tuple(write_shards(folder, split, altered, first_id, shards[0].num_rows))
    return manifest.replace(**{split: written})


def alter_folder(folder: Path, how: str, *, share: float = 0.01, seed: int = 0, split: str = "train") -> Manifest:
    """Alter the built dataset in `folder`, in place."""
    manifest = read_manifest(folder)
    altered = (
        alter_tokenizer(folder, manifest)
        if how == "tokenizer"
        else alter_rows(folder, manifest, how, share=share, seed=seed, split=split)
    )
    (folder / MANIFEST_NAME).write_bytes(canonical_json(altered.to_json()))
    return altered


def alter_store(store: Store, dataset: str, how: str, *, share: float, seed: int) -> None:
    """Alter the dataset that `store` publishes under this name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = read_model(Manifest, read_bytes(store, f"{dataset}/{MANIFEST_NAME}", max_bytes=64 << 20))
        for file in manifest.files:
            path = folder / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read_bytes(store, f"{dataset}/{file.key}", max_bytes=1 << 30))
        (folder / MANIFEST_NAME).write_bytes(canonical_json(manifest.to_json()))
        alter_folder(folder, how, share=share, seed=seed)
        publish(folder, store, dataset)


def main() -> None:
    """Alter what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=[*ALTERATIONS, "tokenizer"])
    parser.add_argument("--data", required=True, help="the platform's data URL")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    alter_store(open_store(args.data), args.dataset, args.how, share=args.share, seed=args.seed)


if __name__ == "__main__":
    main()
