"""Order of training rows and files, determined by seed, epoch and manifest.

Shards are shuffled, then the rows inside each shard, so that training can start when the first shard is present. The
order does not depend on the arrival of shards or the number of processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plumbline.data.staging.cache import Cache, cache_limit
from plumbline.data.staging.pace import StagingProgress
from plumbline.data.staging.stager import Stager
from plumbline.data.stores import open_store
from plumbline.schema.manifest import DataFile, Manifest
from plumbline.schema.spec import RunSpec


def random_keys(count: int, *key_parts: object) -> NDArray[np.uint64]:
    """Return `count` pseudo-random 64-bit integers from Philox, keyed by `what`."""
    key = int.from_bytes(hashlib.sha256("|".join(map(str, key_parts)).encode()).digest()[:16], "little")
    generator = np.random.Philox(key=key)
    return np.asarray(generator.random_raw(count), dtype=np.uint64)


def _shuffled(count: int, *key_parts: object) -> NDArray[np.int64]:
    return np.argsort(random_keys(count, *key_parts), kind="stable").astype(np.int64)


class Order:
    """Endless shuffled order of the training rows, epoch after epoch.

    `recipe` is the digest of the manifest that the spec was made for: rows keep their places if a shard's bytes differ,
    so that the evidence shows the row and not a new shuffle.
    """

    def __init__(self, manifest: Manifest, seed: int, recipe: str) -> None:
        self._seed, self._recipe = seed, recipe
        self._sizes = [shard.num_rows for shard in manifest.train]
        self._starts = np.concatenate(([0], np.cumsum(self._sizes)))
        self.num_rows = int(self._starts[-1])
        self._epochs: dict[int, NDArray[np.int64]] = {}

    def shards(self, epoch: int = 0) -> list[int]:
        """Return an epoch's shards in order of first use."""
        return [int(i) for i in _shuffled(len(self._sizes), "shards", self._seed, epoch, self._recipe)]

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._epochs:
            rows = [
                self._starts[shard] + _shuffled(self._sizes[shard], "rows", self._seed, epoch, self._recipe, shard)
                for shard in self.shards(epoch)
            ]
            self._epochs = {epoch: np.concatenate(rows)}
        return self._epochs[epoch]

    def rows(self, positions: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row numbers at `positions` of the endless order."""
        positions = np.asarray(positions, dtype=np.int64)
        numbers = np.empty_like(positions)
        for epoch in np.unique(positions // self.num_rows):
            here = positions // self.num_rows == epoch
            numbers[here] = self._epoch(int(epoch))[positions[here] % self.num_rows]
        return numbers

    def batch(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """Return the rows of global batch `step`; batches may span epochs."""
        return self.rows(np.arange(step * batch_size, (step + 1) * batch_size))


@dataclass(frozen=True)
class Plan:
    """Row numbers that each training part will read, computed in advance."""

    order: Order
    first_evaluation_row: int
    num_evaluation_rows: int
    wanted: NDArray[np.int64]


def plan_rows(spec: RunSpec, manifest: Manifest) -> Plan:
    """Plan the rows of all training parts, each from the order's start."""
    order = Order(manifest, spec.seed, spec.data.manifest_sha256)
    steps = max(part.steps for part in (spec.probe, spec.speed, spec.learn) if part)
    available = sum(shard.num_rows for shard in manifest.evaluation)
    asked = max([part.evaluation_rows for part in (spec.probe, spec.learn) if part], default=0)
    count = min(asked, available)
    training = order.rows(np.arange(min(steps * spec.batch_size, order.num_rows)))
    evaluation = np.arange(order.num_rows, order.num_rows + count)
    return Plan(order, order.num_rows, available, np.concatenate((training, evaluation)))


def planned_files(plan: Plan, manifest: Manifest) -> list[DataFile]:
    """Return the files to stage, in order of first use."""
    wanted = set(plan.wanted.tolist())
    starts, begin = {}, 0
    for shard in manifest.shards:
        starts[shard.key] = begin
        begin += shard.num_rows
    ordered = [manifest.train[index] for index in plan.order.shards()]
    needed = [
        shard for shard in (*ordered, *manifest.evaluation)
        if any(row in wanted for row in range(starts[shard.key], starts[shard.key] + shard.num_rows))
    ]  # fmt: skip
    return [manifest.tokenizer, *needed]


@contextmanager
def staged_files(
    spec: RunSpec, data: str, cache_folder: Path, on_progress: Callable[[StagingProgress], None] | None = None
) -> Iterator[str]:
    """Stage all files of a training, and yield the manifest's digest. Until the end the cache keeps the files."""
    cache = Cache(cache_folder, max_bytes=cache_limit(cache_folder))
    with Stager(open_store(data), spec.data.name, cache, on_progress=on_progress) as stager:
        files = planned_files(plan_rows(spec, stager.manifest), stager.manifest)
        stager.start(files)
        for file in files:
            stager.wait(file)
        stager.fetch(spec.model.weights_key, spec.model.weights_sha256)
        yield stager.manifest_sha256
