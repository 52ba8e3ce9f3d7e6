"""Small datasets of random bytes with a correct manifest."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

from plumbline.data.staging import Cache, Stager
from plumbline.data.stores import RetryPolicy, Store
from plumbline.data.stores.opening import Timeouts
from plumbline.schema.digest import canonical_json
from plumbline.schema.manifest import DataFile, Manifest, Shard

QUICK = RetryPolicy(
    attempts=5, first_seconds=0.002, longest_seconds=0.01, deadline_seconds=10.0,
    lowest_rate=256 << 10, rate_window_seconds=0.2,
)  # fmt: skip
QUICK_TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=0.3)
PATIENT = RetryPolicy(attempts=5, first_seconds=0.002, longest_seconds=0.01)
"""For tests that count requests: a pause of the test machine causes no retry, since all limits are the defaults."""


class Dataset:
    """Manifest with its objects, keyed relative to the data URL."""

    def __init__(self, manifest: Manifest, objects: dict[str, bytes]) -> None:
        self.manifest = manifest
        self.objects = objects

    @property
    def size(self) -> int:
        """Return the bytes of all files, without the manifest."""
        return sum(file.size for file in self.manifest.files)

    def put(self, write: Callable[[str, bytes], object]) -> None:
        """Write every object, the manifest last."""
        for key, data in self.objects.items():
            write(key, data)


def _file(key: str, data: bytes) -> DataFile:
    return DataFile(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def make_dataset(shards: int = 4, size: int = 200_000, *, seed: int = 7, name: str = "reviews") -> Dataset:
    """Make random shards, one evaluation shard and a tokenizer."""
    rng = random.Random(seed)
    objects: dict[str, bytes] = {}

    def made(key: str, length: int) -> DataFile:
        data = rng.randbytes(length)
        objects[f"{name}/{key}"] = data
        return _file(key, data)

    tokenizer = made("tokenizer.json", 1000)
    files = [made(f"train/{i:05d}.parquet", size) for i in range(shards)]
    files.append(made("evaluation/00000.parquet", size // 2))
    *train, evaluation = [Shard(**file.to_json(), num_rows=1, rows_sha256=file.sha256) for file in files]
    manifest = Manifest(
        name=name, task="masked-lm", tokenizer=tokenizer, vocab_size=100, train=tuple(train), evaluation=(evaluation,)
    )
    objects[f"{name}/manifest.json"] = canonical_json(manifest.to_json())
    return Dataset(manifest, objects)


def stage(store: Store, cache: Cache, name: str = "reviews", *, connections: int = 1) -> int:
    """Stage all files of a dataset, in their order; return the bytes moved."""
    with Stager(store, name, cache, connections=connections) as stager:
        stager.start(stager.manifest.files)
        for file in stager.manifest.files:
            assert stager.wait(file).stat().st_size == file.size
        return stager.bytes_moved


def assert_cache_is_right(cache: Cache) -> None:
    """Check that no wrong file has a final name."""
    assert cache.verify() == []


def temporary_files(folder: Path) -> list[Path]:
    """Return the files that a transfer left behind."""
    return [path for path in folder.rglob("*") if path.suffix in (".part", ".etag")]
