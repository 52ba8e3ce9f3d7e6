"""Striped transfer of the first files: same bytes, bounded connections and threads."""

from __future__ import annotations

import random
import re
import threading
import time
from pathlib import Path

import pytest

from plumbline.data.staging import Cache, Stager, striping
from plumbline.data.staging.pace import Pace
from plumbline.data.stores import ObjectMissingError, RetryingStore, Store
from plumbline.schema.errors import AccessError, CorruptDataError, PlumblineError, UnavailableError
from tests.contract.datasets import QUICK, Dataset, assert_cache_is_right, make_dataset, temporary_files
from tests.contract.test_faults import DEADLINE_SECONDS, SIZE, open_on, outcome_of, publish, root_of, sequence_of
from tests.contract.test_staging import SlowStore, order_digest, published
from tests.faultserver import (
    Change,
    Corrupt,
    Denied,
    Fault,
    FaultServer,
    FullAnswer,
    Missing,
    Reset,
    Served,
    Stall,
    Status,
    Trickle,
    Truncate,
    WrongLength,
)  # fmt: skip

STRIPE = 20_000


@pytest.fixture(autouse=True)
def small_stripes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stripes small, so that a test file has more stripes than connections."""
    monkeypatch.setattr(striping, "SMALLEST_BYTES", STRIPE)
    monkeypatch.setattr(striping, "LARGEST_BYTES", STRIPE)


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


def stripe_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "stripe"]


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


HEALED: list[list[Fault]] = [
    [Status(503, retry_after="0.01"), Status(500), Status(429)],
    [Reset(0), Reset(7000), Reset(10)],
    [Truncate(0), Truncate(13_001), Truncate(19_999)],
    [Stall(5000)],
    [Trickle()],
    [Corrupt(3)],
    [FullAnswer(), FullAnswer()],
    [WrongLength(by=1), WrongLength(by=-1)],
    [Reset(5000), FullAnswer(), Truncate(9), Corrupt(7), Status(503), Reset(99)],
]


@pytest.mark.parametrize("faults", HEALED, ids=lambda faults: "-".join(type(fault).__name__ for fault in faults))
def test_what_passes_is_healed(store: Store, fault_server: FaultServer, tmp_path: Path, faults: list[Fault]) -> None:
    publish(fault_server, store, make_dataset(3, SIZE))
    fault_server.faults.extend(faults)
    stage_train(store, Cache(tmp_path))
    assert not fault_server.faults, "a fault was never met"
    assert_cache_is_right(Cache(tmp_path))
    assert temporary_files(tmp_path) == []
    assert stripe_threads() == []


FINAL: list[tuple[list[Fault], type[PlumblineError], str]] = [
    ([Denied()], AccessError, "the session has ended|credentials of this environment"),
    ([Missing()], ObjectMissingError, "no such object"),
    ([Status(503)] * 100, UnavailableError, "503.*gave up after 5 attempts"),
    ([Stall(100)] * 100, UnavailableError, "gave up"),
    ([Corrupt(5)] * 100, CorruptDataError, "does not match the digest in the manifest; read 3 times"),
    ([Change()], CorruptDataError, "does not match the digest"),
]


@pytest.mark.parametrize("case", FINAL, ids=lambda case: type(case[0][0]).__name__)
@pytest.mark.parametrize("sound", [0, 5])
def test_what_stays_is_one_clear_error_in_time(
    store: Store,
    fault_server: FaultServer,
    tmp_path: Path,
    case: tuple[list[Fault], type[PlumblineError], str],
    sound: int,
) -> None:
    """Also where the first stripes are sound: what is wrong with a later one is raised as itself."""
    faults, kind, words = case
    publish(fault_server, store, make_dataset(1, SIZE))
    fault_server.faults.extend([None] * sound)
    fault_server.faults.extend(faults)
    begin = time.monotonic()
    with pytest.raises(kind, match=words) as caught:
        stage_train(store, Cache(tmp_path))
    assert time.monotonic() - begin < DEADLINE_SECONDS
    assert type(caught.value) is kind
    assert "train/00000" in str(caught.value)
    assert stripe_threads() == []
    assert_cache_is_right(Cache(tmp_path))


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


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["s3", "az"])
@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.long)])
def test_random_sequences(
    kind: str, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer, tmp_path: Path, count: int
) -> None:
    store = open_on(kind, clean_environment, fault_server)
    fault_server.faulty = re.compile("parquet")
    outcomes: dict[str, int] = {}
    for seed in range(count):
        rng = random.Random(f"striped {kind} {seed}")
        publish(fault_server, store, make_dataset(3, SIZE, seed=seed))
        fault_server.faults.clear()
        faults = sequence_of(seed, rng)
        fault_server.faults.extend(faults if seed < 2 else [rng.choice([None, fault]) for fault in faults * 2])
        outcome = outcome_of(store, Cache(tmp_path / str(seed)), connections=rng.choice([2, 4, 8]))
        assert stripe_threads() == []
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    assert outcomes["right"] >= 0.3 * count, outcomes
    assert len(outcomes) >= 3, outcomes
    assert any(entry.end is not None for entry in fault_server.served)


def striped_dataset(store: SlowStore, shards: int) -> Dataset:
    dataset = make_dataset(shards, 6 * STRIPE)
    published(store, dataset)
    return dataset


def test_order_and_the_number_of_connections_are_what_they_were(tmp_path: Path) -> None:
    digests = set()
    for connections in (1, 2, 3, 4, 8, 16):
        store, cache = SlowStore(random.Random(connections)), Cache(tmp_path / str(connections))
        striped_dataset(store, 12)
        digests.add(order_digest(store, cache, connections))
        assert store.most_open <= connections
        assert connections == 1 or len(store.opened) > 12 + 4, "nothing was striped"
        digests.add(order_digest(store, cache, connections))
    assert len(digests) == 1


def test_where_the_link_is_no_limit_only_the_first_file_comes_in_stripes(tmp_path: Path) -> None:
    """No time passes by this clock: each byte comes at once."""
    store = SlowStore()
    striped_dataset(store, 6)
    with Stager(store, "reviews", Cache(tmp_path), connections=4, window=1, clock=lambda: 0.0) as stager:
        stager.start(stager.manifest.train)
        for file in stager.manifest.train:
            stager.wait(file)
    assert store.opened.count("reviews/train/00000.parquet") == 6
    assert store.opened.count("reviews/train/00005.parquet") == 1


def test_leaving_in_the_middle_of_a_stripe_leaves_nothing_running(tmp_path: Path) -> None:
    store = SlowStore()
    striped_dataset(store, 3)
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
