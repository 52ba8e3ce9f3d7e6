"""Striped transfer of the first files: same bytes, bounded connections and threads."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest

from plumbline.data.staging import Cache, Stager
from plumbline.data.staging.pace import Pace
from plumbline.data.stores import RetryingStore, Store
from plumbline.schema.errors import UnavailableError
from tests.contract.datasets import QUICK, assert_cache_is_right, make_dataset
from tests.contract.test_faults import SIZE, STRIPE, make_stripes_small, open_on, publish, root_of, stripe_threads
from tests.contract.test_staging import SlowStore, published
from tests.faultserver.faults import Change, Status, Truncate
from tests.faultserver.server import FaultServer, Served


@pytest.fixture(autouse=True)
def small_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stripes small, so that a test file has more stripes than connections."""
    make_stripes_small(monkeypatch)


@pytest.fixture(params=["s3", "az"])
def store(request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer) -> Store:
    """Either SDK, on the server that fails; only the first shard fails."""
    fault_server.faulty = re.compile("train/00000")
    return open_on(request.param, clean_environment, fault_server)


@pytest.fixture(params=["s3", "az"])
def patient_store(
    request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer
) -> Store:
    fault_server.faulty = re.compile("train/00000")
    return open_on(request.param, clean_environment, fault_server, patient=True)


def of_first_shard(server: FaultServer) -> list[Served]:
    return [entry for entry in server.served if "train/00000" in entry.path]


def stage_train(store: Store, cache: Cache, connections: int = 4) -> int:
    """Stage the shards in order, the first in stripes."""
    with Stager(store, "reviews", cache, connections=connections) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            assert stager.wait(file).stat().st_size == file.size
        return stager.bytes_moved


def test_the_first_shard_comes_in_stripes_over_all_connections_and_no_byte_twice(
    patient_store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    dataset = make_dataset(6, SIZE)
    publish(fault_server, patient_store, dataset)
    assert stage_train(patient_store, Cache(tmp_path)) == 6 * SIZE
    result = sorted((entry.offset, entry.end) for entry in of_first_shard(fault_server))
    assert result == [(start, start + STRIPE) for start in range(0, SIZE, STRIPE)]
    assert fault_server.body_bytes("train") == 6 * SIZE
    assert stripe_threads() == []
    assert_cache_is_right(Cache(tmp_path))


def test_one_connection_or_a_small_file_is_not_striped(
    patient_store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    for connections, size in ((1, SIZE), (4, 2 * STRIPE - 1)):
        publish(fault_server, patient_store, make_dataset(2, size))
        fault_server.served.clear()
        stage_train(patient_store, Cache(tmp_path / str(connections)), connections)
        assert [entry.end for entry in of_first_shard(fault_server)] == [None]


def test_an_object_that_changes_between_two_stripes_is_not_glued_together(
    store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    """The first stripes of one object and the last of another would have the right length."""
    publish(fault_server, store, make_dataset(1, SIZE))
    path = f"{root_of(store)}/reviews/train/00000.parquet"
    fault_server.objects[path] = bytes(reversed(fault_server.objects[path]))
    fault_server.faults.extend([None] * 6 + [Change()])
    assert stage_train(store, Cache(tmp_path)) >= SIZE
    assert sum(entry.sent for entry in of_first_shard(fault_server)) > SIZE
    assert_cache_is_right(Cache(tmp_path))


def test_a_stripe_that_breaks_off_asks_only_for_what_it_lacks(
    patient_store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    publish(fault_server, patient_store, make_dataset(1, SIZE))
    fault_server.faults.extend([Truncate(5000)] * 3)
    assert stage_train(patient_store, Cache(tmp_path)) == SIZE
    assert sum(entry.sent for entry in of_first_shard(fault_server)) == SIZE


def test_a_broken_file_is_resumed_in_stripes_from_where_it_stands(
    store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    publish(fault_server, store, make_dataset(1, SIZE))
    fault_server.faults.extend([None] * 5 + [Status(503)] * 100)
    with pytest.raises(UnavailableError):
        stage_train(store, Cache(tmp_path))
    (part,) = tmp_path.glob("parts/*.part")
    have = part.stat().st_size
    assert have >= STRIPE
    fault_server.faults.clear()
    fault_server.served.clear()
    assert stage_train(store, Cache(tmp_path)) == SIZE - have
    assert min(entry.offset for entry in of_first_shard(fault_server)) == have
    assert len(of_first_shard(fault_server)) > 1
    assert_cache_is_right(Cache(tmp_path))


def test_where_the_link_is_no_limit_only_the_first_file_comes_in_stripes(tmp_path: Path) -> None:
    """No time passes by this clock: each byte comes at once."""
    store = SlowStore()
    published(store, make_dataset(6, 6 * STRIPE))
    with Stager(store, "reviews", Cache(tmp_path), connections=4, window=1, clock=lambda: 0.0) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
    assert store.opened.count("reviews/train/00000.parquet") == 6
    assert store.opened.count("reviews/train/00005.parquet") == 1


def test_leaving_in_the_middle_of_a_stripe_leaves_nothing_running(tmp_path: Path) -> None:
    store = SlowStore()
    published(store, make_dataset(3, 6 * STRIPE))
    store.gate = threading.Semaphore(3)
    with Stager(RetryingStore(store, QUICK), "reviews", Cache(tmp_path), connections=4) as stager:
        stager.start(stager.manifest.train)
        pause, deadline = threading.Event(), time.monotonic() + 120
        while stager.bytes_moved < STRIPE:
            assert time.monotonic() < deadline
            pause.wait(0.001)
        threading.Timer(0.05, store.gate.release, [100]).start()
    assert stripe_threads() == []
    assert store.open_now == 0
    assert sum(part.stat().st_size for part in tmp_path.glob("parts/*.part")) >= STRIPE
    with Stager(store, "reviews", Cache(tmp_path)) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
    assert_cache_is_right(Cache(tmp_path))


def test_staging_hurries_until_enough_is_ahead_and_again_when_training_waits() -> None:
    pace = Pace(enough=4)
    assert pace.hurries(0, now=0.0)
    pace.asked(0.0, there=False)
    assert pace.hurries(0, now=9.0), "the first wait tells nothing of training"
    pace.given(9.0)
    assert pace.hurries(3, now=9.5)
    assert not pace.hurries(4, now=9.5)
    assert not pace.hurries(0, now=9.5), "enough was ahead, and training has not waited since"
    pace.asked(10.0, there=False)
    assert pace.hurries(0, now=10.9)
    assert not pace.hurries(0, now=11.1), "it waited for longer than it worked"
    pace.given(11.5)
    assert not pace.hurries(0, now=11.6)
    pace.asked(14.0, there=True)
    pace.given(14.0)
    assert pace.hurries(0, now=14.1), "it has worked for longer than it waited"
