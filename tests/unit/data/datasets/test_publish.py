"""Publication: atomic, without duplicates, with detection of corrupt stores."""

from __future__ import annotations

import json
import shutil

import pytest

from plumbline.data.datasets import publish, publish_weights, read_manifest, weights_key
from plumbline.data.stores import read_bytes
from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError, CorruptDataError, InvalidInputError
from tests.memory_store import MemoryStore


class CountingStore(MemoryStore):
    """Store that records writes in order, and may fail or corrupt one."""

    def __init__(self, *, fail_at: int | None = None, corrupt: str = "", always: bool = False) -> None:
        super().__init__()
        self.written: list[str] = []
        self.opened: list[str] = []
        self._fail_at = fail_at
        self._corrupt, self._always = corrupt, always

    def open(self, key, **options):
        self.opened.append(key)
        return super().open(key, **options)

    def create(self, key, data):
        if self._fail_at is not None and len(self.written) >= self._fail_at:
            raise StoreUnavailableError("reset by peer", where=self.url)
        info = super().create(key, b"other bytes" if self._corrupt and self._corrupt in key else data)
        self.written.append(key)
        return info

    def swap(self, key, data, *, if_match):
        info = super().swap(key, b"others yet" if self._always and self._corrupt in key else data, if_match=if_match)
        self.written.append(key)
        return info


def test_everything_is_sent_once_and_the_manifest_last(built):
    folder, manifest = built
    store = CountingStore()
    seen = []
    done = publish(folder, store, "reviews", lambda number, total, key: seen.append((number, total, key)))
    assert store.written[-1] == "reviews/manifest.json"
    assert sorted(store.written[:-1]) == sorted(f"reviews/{file.key}" for file in manifest.files)
    assert (done.written, done.skipped, done.replaced) == (len(manifest.files), 0, None)
    assert done.bytes_written == sum(file.size for file in manifest.files)
    assert [entry[:2] for entry in seen] == [(i + 1, len(manifest.files)) for i in range(len(manifest.files))]
    for file in manifest.files:
        assert digest_bytes(read_bytes(store, f"reviews/{file.key}")) == file.sha256
    store.written.clear()
    store.opened.clear()
    again = publish(folder, store)
    assert (again.written, again.skipped, again.bytes_written) == (0, len(manifest.files), 0)
    assert store.written == []
    assert store.opened == ["reviews/manifest.json"]


def test_an_interrupted_push_leaves_no_manifest_and_the_next_one_finishes(built):
    folder, manifest = built
    store = CountingStore(fail_at=2)
    with pytest.raises(StoreUnavailableError):
        publish(folder, store)
    assert "reviews/manifest.json" not in store.written
    store._fail_at = None
    done = publish(folder, store)
    assert done.written + done.skipped == len(manifest.files)
    assert done.skipped >= 2


def test_a_store_that_keeps_other_bytes_is_caught_before_the_manifest(built):
    folder, manifest = built
    store = CountingStore(corrupt=manifest.train[1].key, always=True)
    for _ in range(2):
        with pytest.raises(CorruptDataError, match=r"different bytes are read back.*delete that object"):
            publish(folder, store)
    assert "reviews/manifest.json" not in store.written


def test_a_file_that_was_damaged_on_its_way_is_sent_again(built):
    folder, manifest = built
    store = CountingStore(corrupt=manifest.train[1].key)
    publish(folder, store)
    for file in manifest.files:
        assert digest_bytes(read_bytes(store, f"reviews/{file.key}")) == file.sha256


def test_a_damaged_folder_is_refused_before_the_first_byte_is_sent(built, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(built[0], folder)
    shard = folder / built[1].train[0].key
    shard.write_bytes(shard.read_bytes()[:-1] + b"!")
    store = CountingStore()
    with pytest.raises(CorruptDataError, match="does not match the manifest"):
        publish(folder, store)
    assert store.written == []


def test_another_dataset_of_the_name_is_replaced_and_said_so(built, store):
    folder, manifest = built
    publish(folder, store)
    other = manifest.replace(source="another")
    current = store.stat("reviews/manifest.json")
    store.swap("reviews/manifest.json", json.dumps(other.to_json()).encode(), if_match=current.etag)
    assert publish(folder, store).replaced == other.digest
    current = store.stat("reviews/manifest.json")
    store.swap("reviews/manifest.json", b"{not a manifest", if_match=current.etag)
    assert publish(folder, store).replaced == ""
    assert publish(folder, store).replaced is None


def test_two_pushes_at_once_end_with_one_manifest_and_one_error(built):
    class Raced(MemoryStore):
        def swap(self, key, data, *, if_match):
            super().swap(key, b"the other push", if_match=if_match)
            return super().swap(key, data, if_match=if_match)

    with pytest.raises(InvalidInputError, match="published at the same time"):
        publish(built[0], Raced())


def test_the_wrong_folder_is_named(built, store, tmp_path):
    with pytest.raises(ConfigurationError, match="contains the dataset 'reviews', not 'news'"):
        publish(built[0], store, "news")
    with pytest.raises(InvalidInputError, match=r"contains no manifest\.json"):
        read_manifest(tmp_path)


def test_weights_lie_under_their_digest_and_are_sent_once(store, tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"weights")
    sha256 = digest_bytes(b"weights")
    assert publish_weights(path, store, sha256)
    assert not publish_weights(path, store, sha256)
    assert read_bytes(store, weights_key(sha256)) == b"weights"
    with pytest.raises(CorruptDataError, match="does not match its digest"):
        publish_weights(path, store, "0" * 64)
