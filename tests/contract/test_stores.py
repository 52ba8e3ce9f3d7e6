"""Contract tests that every backend passes, against real servers."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from plumbline.data.stores import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    RetryPolicy,
    Store,
    ensure_content,
    ensure_object,
    open_store,
    protocol,
    read_bytes,
)
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import digest_object
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from tests.contract.conftest import ACCOUNT, give_aws, give_azure, give_google, make_bucket, make_container, marked
from tests.contract.uplink import SlowUplink
from tests.faultserver.google import GoogleServer
from tests.memory_store import MemoryStore

_numbers = itertools.count()


def _s3(fixture: Callable[[str], Any], environment: pytest.MonkeyPatch) -> Iterator[Store]:
    bucket = f"bucket-{next(_numbers)}"
    make_bucket(environment, fixture("moto"), bucket)
    yield open_store(f"s3://{bucket}/some/prefix")


def _az(fixture: Callable[[str], Any], environment: pytest.MonkeyPatch) -> Iterator[Store]:
    container = f"container-{next(_numbers)}"
    make_container(environment, fixture("azurite"), container)
    yield open_store(f"az://{ACCOUNT}/{container}/some/prefix")


def _gs(fixture: Callable[[str], Any], environment: pytest.MonkeyPatch) -> Iterator[Store]:
    with GoogleServer() as server:
        give_google(environment, server, fixture("tmp_path"))
        yield open_store("gs://bucket/some/prefix")


def _gs_fake(fixture: Callable[[str], Any], environment: pytest.MonkeyPatch) -> Iterator[Store]:
    """fake-gcs-server in place of our own."""
    url = fixture("fake_gcs")
    environment.setenv("STORAGE_EMULATOR_HOST", url)
    bucket = f"bucket-{next(_numbers)}"
    assert requests.post(f"{url}/storage/v1/b", json={"name": bucket}, timeout=10).ok
    yield open_store(f"gs://{bucket}/some/prefix")


def _s3_locked(fixture: Callable[[str], Any], environment: pytest.MonkeyPatch) -> Iterator[Store]:
    """Create a bucket with Object Lock and a default retention."""
    bucket = f"bucket-{next(_numbers)}"
    client = make_bucket(environment, fixture("moto"), bucket, ObjectLockEnabledForBucket=True)
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    client.put_object_lock_configuration(
        Bucket=bucket, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    yield open_store(f"s3://{bucket}/some/prefix")


_OPENERS = {
    "s3": _s3,
    "s3-locked": _s3_locked,
    "az": _az,
    "gs": _gs,
    "gs-fake": _gs_fake,
}
"""Opener of each kind: called with `request.getfixturevalue` and an environment without credentials."""


@pytest.fixture(params=["memory", "file", *marked(*_OPENERS)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return an empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "file":
        yield open_store(f"file://{tmp_path}/store")
    else:
        environment = request.getfixturevalue("clean_environment")
        yield from _OPENERS[request.param](request.getfixturevalue, environment)


def read_from(
    store: Store, key: str, offset: int = 0, if_match: str | None = None, length: int | None = None
) -> tuple[bytes, ObjectInfo]:
    result = bytearray()
    buffer = memoryview(bytearray(1000))
    with store.open(key, offset=offset, length=length, if_match=if_match) as reader:
        while size := reader.readinto(buffer):
            result += buffer[:size]
        return bytes(result), reader.info


def test_what_was_written_reads_back_from_any_offset(store: Store) -> None:
    data = random.Random(1).randbytes(5000)
    written = store.create("folder/a name + more.bin", data)
    assert store.stat("folder/a name + more.bin") == written == ObjectInfo(written.key, 5000, written.etag)
    for offset in (0, 1, 4999):
        assert read_from(store, written.key, offset, written.etag) == (data[offset:], written)


def test_a_local_file_that_does_not_exist_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="gone: no such file"):
        store.create("key", tmp_path / "gone")


def test_a_range_is_those_bytes_and_no_others(store: Store) -> None:
    data = random.Random(3).randbytes(5000)
    written = store.create("key", data)
    for offset, length in ((0, 1), (0, 2500), (1, 1000), (2500, 2500), (4999, 1), (0, 5000)):
        assert read_from(store, "key", offset, written.etag, length) == (data[offset : offset + length], written)
    for offset in (0, 1, 4999):
        assert read_from(store, "key", offset, length=6000) == (data[offset:], written), "past the object's end"


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.create("empty", b"")
    assert read_from(store, "empty")[0] == b""


def test_create_never_replaces(store: Store) -> None:
    store.create("key", b"first")
    with pytest.raises(ObjectExistsError):
        store.create("key", b"second")
    assert read_bytes(store, "key") == b"first"


@pytest.mark.parametrize("kind", ["create", "swap"])
def test_one_writer_wins_and_its_bytes_stay(store: Store, kind: str) -> None:
    start = store.create("race", b"start").etag if kind == "swap" else None

    def attempt(number: int) -> bytes | None:
        data = b"%d" % number * 100
        try:
            store.create("race", data) if start is None else store.swap("race", data, if_match=start)
        except (ObjectExistsError, PreconditionFailedError):
            return None
        return data

    with ThreadPoolExecutor(8) as pool:
        winners = [data for data in pool.map(attempt, range(8)) if data is not None]
    assert len(winners) == 1
    assert read_bytes(store, "race") == winners[0]


def test_swap_replaces_only_what_was_read(store: Store) -> None:
    first = store.swap("pointer", b"one", if_match=None)
    second = store.swap("pointer", b"two", if_match=first.etag)
    for stale in (first.etag, None):
        with pytest.raises(PreconditionFailedError):
            store.swap("pointer", b"three", if_match=stale)
    assert read_from(store, "pointer") == (b"two", second)
    with pytest.raises(PreconditionFailedError):
        store.swap("never-written", b"x", if_match=second.etag)


def test_reading_on_in_another_object_is_refused(store: Store) -> None:
    old = store.swap("key", b"old bytes", if_match=None)
    store.swap("key", b"new bytes", if_match=old.etag)
    for length in (None, 2):
        with pytest.raises(PreconditionFailedError):
            read_from(store, "key", 4, old.etag, length)


def test_a_missing_object_is_said_to_be_missing(store: Store) -> None:
    store.create("there", b"x")
    with pytest.raises(ObjectMissingError, match="not-there"):
        store.stat("not-there")
    with pytest.raises(ObjectMissingError, match="not-there"):
        read_from(store, "not-there")


def test_list_gives_every_key_below_a_prefix_in_order(store: Store) -> None:
    keys = [f"a/{number}" for number in range(7)] + ["a/b/c", "ab", "b"]
    for key in reversed(keys):
        store.create(key, key.encode())
    assert [info.key for info in store.list()] == sorted(keys)
    assert [info.key for info in store.list("a/")] == sorted(key for key in keys if key.startswith("a/"))
    assert list(store.list("ab")) == [store.stat("ab")]
    assert list(store.list("none/")) == []


@pytest.mark.first(2)
def test_a_large_file_arrives_whole(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(random.Random(2).randbytes(1 << 20) * 33)
    assert ensure_object(store, "large", path)
    # fake-gcs-server ignores the precondition of a resumable upload; Google, and our own server, do not.
    if "STORAGE_EMULATOR_HOST" not in os.environ:
        assert not ensure_object(store, "large", path)
        with pytest.raises(ObjectExistsError):
            store.create("large", path)
    assert store.stat("large").size == 33 << 20


@pytest.mark.long
def test_a_slow_uplink_takes_its_time(azurite: str, clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two seconds of sending, over a socket that waits for one at most: bytes that move are not trouble."""
    with SlowUplink(azurite, bytes_per_second=4 << 20) as uplink:
        give_azure(clean_environment, f"{uplink.url}/{{account}}")
        store = open_store(
            f"az://{ACCOUNT}/uplink", policy=RetryPolicy(attempts=1), timeouts=Timeouts(connect_seconds=1.0)
        )
        store.inner._client.create_container()  # type: ignore[attr-defined]
        data = random.Random(4).randbytes(8 << 20)
        store.create("bytes", data)
        (tmp_path / "file").write_bytes(data)
        store.create("file", tmp_path / "file")
        assert digest_object(store, "bytes") == digest_object(store, "file") == (len(data), digest_bytes(data))


def test_ensure_refuses_other_bytes_under_a_key_in_use(store: Store) -> None:
    store.create("key", b"mine")
    with pytest.raises(InvalidInputError, match="different bytes"):
        ensure_object(store, "key", b"not mine")
    with pytest.raises(CorruptDataError, match="are read back"):
        ensure_object(store, "new", b"bytes", sha256="0" * 64)


def test_damaged_content_is_replaced_where_the_key_names_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(3).randbytes(3 << 20)
    sha256 = digest_bytes(data)
    store.create("by/digest", data[:-1] + b"?")
    with pytest.raises(InvalidInputError, match="different bytes"):
        ensure_object(store, "by/digest", data, sha256=sha256)
    assert ensure_content(store, "by/digest", data, sha256)
    assert not ensure_content(store, "by/digest", data, sha256)
    assert digest_object(store, "by/digest") == (len(data), sha256)

    monkeypatch.setattr(protocol, "_MOST_REPLACED_BYTES", 4)
    store.create("by/other", b"damaged")
    with pytest.raises(CorruptDataError, match=r"different bytes.*delete that object"):
        ensure_content(store, "by/other", b"right", digest_bytes(b"right"))


def test_two_who_mend_the_same_object_do_not_disturb_each_other() -> None:
    class Raced(MemoryStore):
        def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
            super().swap(key, data, if_match=if_match)
            return super().swap(key, data, if_match=if_match)

    store = Raced()
    store.create("by/digest", b"damaged")
    assert ensure_content(store, "by/digest", b"right", digest_bytes(b"right"))
    assert read_bytes(store, "by/digest") == b"right"


@pytest.mark.parametrize("key", ["../up", "/absolute", "a//b", "a/../../b", "", "c:\\x", "a\nb"])
def test_keys_that_leave_the_store_are_refused(store: Store, key: str) -> None:
    for use in (store.stat, lambda key: store.create(key, b""), lambda key: read_from(store, key)):
        with pytest.raises(InvalidInputError):
            use(key)


def test_delete_removes_one_object_and_forgives_that_it_is_gone(store: Store) -> None:
    store.create("key", b"first")
    store.create("key2", b"other")
    store.delete("key")
    store.delete("key")
    assert [info.key for info in store.list()] == ["key2"]
    with pytest.raises(ObjectMissingError):
        store.stat("key")


@pytest.mark.parametrize("kind", marked("s3", "az", "gs"))
def test_a_first_write_where_there_is_no_bucket_says_so(
    kind: str, request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if kind == "s3":
        give_aws(clean_environment, request.getfixturevalue("moto"))
    elif kind == "az":
        give_azure(clean_environment, f"{request.getfixturevalue('azurite')}/{{account}}")
    urls = {"s3": "s3://never-made/prefix", "az": f"az://{ACCOUNT}/never-made/prefix", "gs": "gs://never-made"}
    with GoogleServer() as server:
        give_google(clean_environment, server, tmp_path)
        store = open_store(urls[kind])
        with pytest.raises(ObjectMissingError, match=r"no such (bucket|container)"):
            store.swap("key", b"data", if_match=None)
