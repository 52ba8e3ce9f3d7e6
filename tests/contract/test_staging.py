"""Staging as seen by training: order, window, errors, waits, and the cache."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plumbline.data.datasets import verify_dataset
from plumbline.data.staging import Cache, Stager, StagingProgress
from plumbline.data.stores import ObjectMissingError, ObjectReader
from plumbline.schema.errors import ConfigurationError, CorruptDataError, DiskFullError
from plumbline.train.source import waited
from tests.contract.datasets import Dataset, assert_cache_is_right, make_dataset, stage
from tests.contract.test_faults import STRIPE, make_stripes_small
from tests.memory_store import MemoryStore


class SlowStore(MemoryStore):
    """Store with a delay per object, which records open objects."""

    def __init__(self, delay: random.Random | None = None) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.open_now = 0
        self.most_open = 0
        self.gate: threading.Semaphore | None = None
        self._delay = delay
        self._count = threading.Lock()

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[ObjectReader]:
        with self._count:
            self.opened.append(key)
            self.open_now += 1
            self.most_open = max(self.most_open, self.open_now)
        try:
            if self.gate is not None and not key.endswith("manifest.json"):
                self.gate.acquire()
            if self._delay is not None:
                threading.Event().wait(self._delay.random() * 0.01)
            with super().open(key, offset=offset, length=length, if_match=if_match) as reader:
                yield reader
        finally:
            with self._count:
                self.open_now -= 1


def published(store: MemoryStore, dataset: Dataset) -> MemoryStore:
    dataset.put(store.create)
    return store


def order_digest(store: MemoryStore, cache: Cache, connections: int) -> str:
    """Return the digest of a seeded shuffle of the shards, in reading order."""
    hasher = hashlib.sha256()
    with Stager(store, "reviews", cache, connections=connections, window=max(8, connections)) as stager:
        files = list(stager.manifest.shards)
        random.Random(3).shuffle(files)
        stager.start(files)
        for file in files:
            hasher.update(stager.wait(file).read_bytes())
    return hasher.hexdigest()


@pytest.mark.parametrize("in_stripes", [False, True])
def test_order_is_never_that_of_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_stripes: bool) -> None:
    """With stripes, too, and never more objects are open than there are connections."""
    if in_stripes:
        make_stripes_small(monkeypatch)
    dataset = make_dataset(12, 6 * STRIPE if in_stripes else 3000)
    digests = set()
    for connections in (1, 2, 3, 4, 8, 16):
        store = SlowStore(random.Random(connections))
        cache = Cache(tmp_path / str(connections))
        published(store, dataset)
        digests.add(order_digest(store, cache, connections))
        assert store.most_open <= connections
        assert (len(store.opened) > 12 + 4) is (in_stripes and connections > 1)
        digests.add(order_digest(store, cache, connections))
    assert len(digests) == 1


def test_no_more_than_the_window_is_begun_ahead(tmp_path: Path) -> None:
    store = SlowStore()
    published(store, make_dataset(20, 100))
    with Stager(store, "reviews", Cache(tmp_path), connections=4, window=5) as stager:
        files = stager.manifest.train
        stager.start(files)
        for index, file in enumerate(files):
            stager.wait(file)
            begun = [key for key in store.opened if "train/" in key]
            assert len(begun) <= index + 1 + 5
            assert f"reviews/{file.key}" in begun


def test_training_goes_on_while_later_shards_come(tmp_path: Path) -> None:
    store = SlowStore()
    store.gate = threading.Semaphore(1)
    published(store, make_dataset(4, 100))
    with Stager(store, "reviews", Cache(tmp_path), connections=1) as stager:
        stager.start(stager.manifest.train)
        assert stager.wait(stager.manifest.train[0]).stat().st_size == 100
        assert stager.progress().files_done == 1
        store.gate.release(10)


def test_waits_tell_which_file_how_long_and_why(tmp_path: Path) -> None:
    store = SlowStore()
    store.gate = threading.Semaphore(0)
    dataset = make_dataset(2, 100)
    published(store, dataset)
    ticks = iter(range(1000))
    options = {"clock": lambda: float(next(ticks)), "on_progress": lambda _: store.gate.release(10)}
    with Stager(store, "reviews", Cache(tmp_path), connections=1, **options) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
        key, seconds, why = stager.waits[0]
        assert key == "train/00000.parquet"
        assert seconds >= 1.0
        assert why
    with Stager(store, "reviews", Cache(tmp_path), connections=1) as stager:
        stager.start(stager.manifest.train)
        stager.wait(stager.manifest.train[0])
        assert stager.waits == []


def test_who_waits_is_told_how_far_it_is_and_the_record_how_long_it_took_and_why(tmp_path: Path) -> None:
    store, output = SlowStore(), []
    published(store, make_dataset(3, 100))
    with Stager(store, "reviews", Cache(tmp_path)) as stager:
        stager.start(stager.manifest.train[:1])
        stager.wait(stager.manifest.train[0])
    store.gate = threading.Semaphore(0)

    def tell(progress: StagingProgress) -> None:
        output.append(progress.words)
        store.gate.release(10)

    # A clock of whole seconds, so that each look at it is worth telling.
    ticks = iter(range(1000))
    options = {"connections": 1, "clock": lambda: float(next(ticks)), "on_progress": tell}
    with Stager(store, "reviews", Cache(tmp_path), **options) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
        assert output[0].startswith("1 of 3 files, 0.0 MiB/s")
        assert output[0].endswith("1 from the cache")
        result = waited(stager)
    assert result["data_wait"] >= 1.0
    assert sum(result.values()) == 2 * result["data_wait"]
    assert all(name.startswith("data_wait: ") and len(name) > 20 for name in result if name != "data_wait")


def test_an_error_reaches_whoever_waits_as_itself(tmp_path: Path) -> None:
    store = SlowStore()
    dataset = make_dataset(6, 100)
    del dataset.objects["reviews/train/00002.parquet"]
    published(store, dataset)
    with Stager(store, "reviews", Cache(tmp_path), connections=2) as stager:
        stager.start(stager.manifest.train)
        with pytest.raises(ObjectMissingError, match="00002"):
            list(map(stager.wait, stager.manifest.train))
        with pytest.raises(ObjectMissingError, match="00002"):
            stager.wait(stager.manifest.train[5])


def test_one_object_outside_the_manifest(tmp_path: Path) -> None:
    store = published(SlowStore(), make_dataset(1, 10))
    weights = b"weights" * 100
    digest = hashlib.sha256(weights).hexdigest()
    store.create(f"weights/{digest}.safetensors", weights)
    with Stager(store, "reviews", Cache(tmp_path)) as stager:
        assert stager.fetch(f"weights/{digest}.safetensors", digest).read_bytes() == weights
        with pytest.raises(CorruptDataError):
            stager.fetch(f"weights/{digest}.safetensors", "0" * 64)
    with Stager(store, "reviews", Cache(tmp_path)) as stager:
        opened = len(store.opened)
        stager.fetch(f"weights/{digest}.safetensors", digest)
        assert len(store.opened) == opened


def test_the_manifest_is_found_again_without_a_store(tmp_path: Path) -> None:
    dataset = make_dataset(1, 10)
    cache = Cache(tmp_path)
    stage(published(MemoryStore(), dataset), cache)
    assert cache.manifest(dataset.manifest.digest) == dataset.manifest
    assert all(cache.path(file.sha256) for file in dataset.manifest.files)
    assert cache.manifest("0" * 64) is None


def test_a_new_manifest_is_seen_and_a_spoiled_copy_is_not_believed(tmp_path: Path) -> None:
    first, second = make_dataset(1, 10, seed=1), make_dataset(1, 10, seed=2)
    store = published(MemoryStore(), first)
    cache = Cache(tmp_path)
    with Stager(store, "reviews", cache) as stager:
        assert stager.manifest_sha256 == first.manifest.digest
    kept = tmp_path / "manifests" / f"{first.manifest.digest}.json"
    kept.write_bytes(second.objects["reviews/manifest.json"])
    with Stager(store, "reviews", cache) as stager:
        assert stager.manifest == first.manifest
    key = "reviews/manifest.json"
    store.swap(key, second.objects[key], if_match=store.stat(key).etag)
    with Stager(store, "reviews", cache) as stager:
        assert stager.manifest == second.manifest


def test_what_was_used_longest_ago_is_evicted_and_what_is_in_use_never(tmp_path: Path) -> None:
    store = MemoryStore()
    datasets = [make_dataset(3, 1000, seed=seed, name=name) for seed, name in enumerate(["one", "two", "three"])]
    for dataset in datasets:
        dataset.put(store.create)
    item, two, three = (dataset.manifest for dataset in datasets)
    cache = Cache(tmp_path, max_bytes=datasets[0].size * 2)
    stage(store, cache, "two")
    with Stager(store, "one", cache) as stager:
        stager.start(item.files)
        for file in item.files:
            stager.wait(file)
        stage(store, cache, "three")
        assert all(cache.path(file.sha256) for file in (*item.files, *three.files))
        assert not any(cache.path(file.sha256) for file in two.files)
    assert sum(path.stat().st_size for path in tmp_path.glob("objects/*/*")) <= datasets[0].size * 2
    with pytest.raises(ConfigurationError, match="more than the cache's limit"):
        stage(MemoryStoreCopy(store), Cache(tmp_path / "other", max_bytes=100), "one")


def MemoryStoreCopy(store: MemoryStore) -> MemoryStore:  # noqa: N802 - stands for a class
    """The same objects in a different store."""
    copy = MemoryStore("memory://copy")
    for info in store.list():
        with store.open(info.key) as reader:
            buffer = bytearray(info.size)
            reader.readinto(memoryview(buffer))
            copy.create(info.key, bytes(buffer))
    return copy


def test_too_little_room_is_told_before_the_first_byte(tmp_path: Path) -> None:
    store = SlowStore()
    published(store, make_dataset(2, 1000))
    with Stager(store, "reviews", Cache(tmp_path, free_bytes=lambda _: 10_000)) as stager:
        with pytest.raises(
            DiskFullError, match=r"^\S+: 3,500 bytes and a reserve of 67,108,864 are needed, 10,000 are free"
        ):
            stager.start(stager.manifest.files)
        assert store.opened == ["reviews/manifest.json"]


def test_damage_on_disk_is_found_and_mended(tmp_path: Path) -> None:
    store = published(MemoryStore(), make_dataset(3, 1000))
    cache = Cache(tmp_path)
    stage(store, cache)
    manifest = cache.manifest(next(tmp_path.glob("manifests/*")).stem)
    flipped, cut = (cache.path(shard.sha256) for shard in manifest.train[:2])
    for path, data in ((flipped, b"x" * 1000), (cut, b"short")):
        path.chmod(0o600)
        path.write_bytes(data)
    assert sorted(cache.verify()) == sorted([flipped.name, cut.name])
    stage(store, cache)
    assert_cache_is_right(cache)
    cut.chmod(0o600)
    cut.write_bytes(b"short")
    stage(store, cache)
    assert_cache_is_right(cache)


def test_verify_names_every_object_that_is_wrong() -> None:
    dataset = make_dataset(4, 100)
    dataset.objects["reviews/train/00000.parquet"] = b"x" * 100
    dataset.objects["reviews/train/00001.parquet"] += b"more"
    del dataset.objects["reviews/train/00002.parquet"]
    verified = verify_dataset(published(MemoryStore(), dataset), "reviews")
    assert verified.problems == {
        "train/00000.parquet": "does not match the digest in the manifest",
        "train/00001.parquet": "is 104 bytes long, the manifest says 100",
        "train/00002.parquet": "no such object",
    }
    assert verified.manifest.digest == dataset.manifest.digest
    assert len(verified.manifest.files) == 6
