"""Change some labels of a published dataset, to demonstrate drift.

The changed dataset has a manifest that its bytes match; only a comparison with another platform shows the difference.
`deployments/suites/local-drift.toml` runs this program before its round.

    python -m plumbline.local.altered_labels --data URL --dataset NAME [--share 0.01] [--seed 0]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from plumbline.data.datasets import MANIFEST_NAME, publish
from plumbline.data.datasets.rows import Row
from plumbline.data.datasets.shards import write_shards
from plumbline.data.stores import Store, open_store, read_bytes
from plumbline.schema.base import read_model
from plumbline.schema.digest import canonical_json
from plumbline.schema.manifest import Manifest


def alter_labels(store: Store, dataset: str, *, share: float, seed: int) -> None:
    """Publish the dataset again, with changed labels on some training rows."""
    manifest = read_model(Manifest, read_bytes(store, f"{dataset}/{MANIFEST_NAME}", max_bytes=64 << 20))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in manifest.files:
            path = folder / file.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read_bytes(store, f"{dataset}/{file.key}", max_bytes=1 << 30))
        rows = _read_rows(folder, manifest)
        count = max(1, round(share * len(rows)))
        generator = np.random.Generator(np.random.Philox(seed))
        for index in generator.choice(len(rows), count, replace=False).tolist():
            row = rows[index]
            rows[index] = Row(row.text, (int(row.label or 0) + 1) % (manifest.num_labels or 2))
        shards = tuple(write_shards(folder, "train", rows, 0, manifest.train[0].num_rows))
        (folder / MANIFEST_NAME).write_bytes(canonical_json(manifest.replace(train=shards).to_json()))
        publish(folder, store, dataset)


def _read_rows(folder: Path, manifest: Manifest) -> list[Row]:
    tables = [pq.read_table(folder / shard.key).to_pydict() for shard in manifest.train]
    return [Row(*pair) for table in tables for pair in zip(table["text"], table["label"], strict=True)]


def main() -> None:
    """Change labels in the dataset given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the platform's data URL")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--share", type=float, default=0.01, help="share of the training rows (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    alter_labels(open_store(args.data), args.dataset, share=args.share, seed=args.seed)


if __name__ == "__main__":
    main()
