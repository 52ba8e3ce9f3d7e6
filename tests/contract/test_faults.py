"""Network and store failures: the right bytes in the end, or one clear error in time."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter, deque
from pathlib import Path

import pytest
import urllib3

from plumbline.data.staging import Cache, striping
from plumbline.data.stores import ObjectMissingError, Store, open_store
from plumbline.schema.errors import AccessError, ConfigurationError, CorruptDataError, PlumblineError, UnavailableError
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY, give_aws, give_azure
from tests.contract.datasets import (
    PATIENT,
    QUICK,
    QUICK_TIMEOUTS,
    Dataset,
    assert_cache_is_right,
    make_dataset,
    stage,
    temporary_files,
)  # fmt: skip
from tests.faultserver.faults import (
    Change,
    Corrupt,
    Denied,
    Fault,
    FullAnswer,
    Missing,
    RedirectLoop,
    Reset,
    Stall,
    Status,
    Trickle,
    Truncate,
    WrongLength,
)
from tests.faultserver.server import FaultServer

SIZE, STRIPE = 200_000, 20_000
DEADLINE_SECONDS = 8.0
IN_STRIPES = " in stripes"


@pytest.fixture(params=["s3", "az", "gs", f"s3{IN_STRIPES}", f"az{IN_STRIPES}"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an SDK, which may read files in stripes: a test file has more stripes than connections."""
    if request.param.endswith(IN_STRIPES):
        make_stripes_small(monkeypatch)
    return str(request.param)


def make_stripes_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(striping, "SMALLEST_BYTES", STRIPE)
    patch.setattr(striping, "LARGEST_BYTES", STRIPE)


@pytest.fixture
def connections(kind: str) -> int:
    return 4 if kind.endswith(IN_STRIPES) else 1


@pytest.fixture
def store(kind: str, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer) -> Store:
    """Return a store of an SDK on the faulty server; only the first shard fails."""
    fault_server.faulty = re.compile("train/00000")
    return open_on(kind.removesuffix(IN_STRIPES), clean_environment, fault_server)


def open_on(kind: str, environment: pytest.MonkeyPatch, server: FaultServer, *, patient: bool = False) -> Store:
    """Open the faulty server's store through the SDK of `kind`; `patient` for tests that count requests."""
    policy, timeouts = (PATIENT, None) if patient else (QUICK, QUICK_TIMEOUTS)
    if kind == "s3":
        give_aws(environment, server.url)
        return open_store("s3://bucket/data", policy=policy, timeouts=timeouts)
    if kind == "gs":
        environment.setenv("STORAGE_EMULATOR_HOST", server.url)
        return open_store("gs://bucket/data", policy=policy, timeouts=timeouts)
    give_azure(environment, server.url + "/{account}")
    return open_store(f"az://{ACCOUNT}/bucket/data", policy=policy, timeouts=timeouts)


@pytest.fixture(params=["s3", "az", "gs"])
def patient_store(
    request: pytest.FixtureRequest, clean_environment: pytest.MonkeyPatch, fault_server: FaultServer
) -> Store:
    fault_server.faulty = re.compile("parquet|tokenizer")
    return open_on(request.param, clean_environment, fault_server, patient=True)


def root_of(store: Store) -> str:
    return f"/{ACCOUNT}/bucket/data" if store.url.startswith("az") else "/bucket/data"


def publish(server: FaultServer, store: Store, dataset: Dataset) -> None:
    server.objects = {f"{root_of(store)}/{key}": data for key, data in dataset.objects.items()}


HEALED: list[list[Fault]] = [
    [Status(503, retry_after="0.01"), Status(500), Status(429)],
    [Reset(0), Reset(7000), Reset(10)],
    [Reset(70_000), Reset(10)],
    [Truncate(0), Truncate(13_001), Truncate(19_999), Truncate(130_001)],
    [Stall(5000)],
    [Stall(50_000)],
    [Trickle()],
    [Corrupt(3)],
    [Corrupt(199_999), Corrupt(0)],
    [Reset(100_000), FullAnswer()],
    [WrongLength(by=1), WrongLength(by=-1)],
    [Reset(5000), Truncate(9), Corrupt(7), Status(503), Reset(99), FullAnswer()],
]


@pytest.mark.parametrize("faults", HEALED, ids=lambda faults: "-".join(type(fault).__name__ for fault in faults))
def test_what_passes_is_healed(
    store: Store, fault_server: FaultServer, tmp_path: Path, faults: list[Fault], connections: int
) -> None:
    publish(fault_server, store, make_dataset(2, SIZE))
    fault_server.faults.extend(faults)
    stage(store, Cache(tmp_path), connections=connections)
    assert not fault_server.faults, "a fault was never met"
    assert_cache_is_right(Cache(tmp_path))
    assert temporary_files(tmp_path) == []
    assert stripe_threads() == []


def stripe_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "stripe"]


FINAL: list[tuple[list[Fault], type[PlumblineError], str]] = [
    ([Denied()], AccessError, "the session has ended|credentials of this environment"),
    ([Missing()], ObjectMissingError, "no such object"),
    ([RedirectLoop()], ConfigurationError, "307"),
    ([Status(503)] * 5, UnavailableError, "503.*gave up after 5 attempts"),
    ([Status(503, retry_after="3600")], UnavailableError, "503.*gave up after 1 attempts"),
    ([Stall(100)] * 5, UnavailableError, "gave up"),
    ([Trickle()] * 5, UnavailableError, "only .* KiB/s arrive"),
    ([Reset(5)] * 5, UnavailableError, "broke off"),
    ([Corrupt(5)] * 3, CorruptDataError, "does not match the digest in the manifest; read 3 times"),
    ([WrongLength(by=7)] * 3, CorruptDataError, "is 200007 bytes long, the manifest says 200000"),
    ([Change()], CorruptDataError, "does not match the digest"),
    ([Reset(100_000), Change()], CorruptDataError, "does not match the digest"),
]


@pytest.mark.parametrize("case", FINAL, ids=lambda case: "-".join(type(fault).__name__ for fault in case[0]))
def test_what_stays_is_one_clear_error_in_time(
    store: Store, fault_server: FaultServer, tmp_path: Path, case: tuple[list[Fault], type[PlumblineError], str],
    connections: int,
) -> None:  # fmt: skip
    """Also where the first stripes are sound: what is wrong with a later one is raised as itself."""
    faults, error, words = case
    publish(fault_server, store, make_dataset(1, SIZE))
    if connections > 1:
        faults = [*[None] * 5, *faults * (1 if Change() in faults else 20)]
        if WrongLength(by=7) in faults:
            error, words = UnavailableError, "ends at a different offset"
    fault_server.faults.extend(faults)
    begin = time.monotonic()
    with pytest.raises(error, match=words) as caught:
        stage(store, Cache(tmp_path), connections=connections)
    assert time.monotonic() - begin < DEADLINE_SECONDS
    assert type(caught.value) is error
    assert "train/00000" in str(caught.value)
    assert connections > 1 or not fault_server.faults, "an error that may pass was given up, or a final one tried again"
    assert stripe_threads() == []
    assert_cache_is_right(Cache(tmp_path))


@pytest.mark.parametrize("kind", ["s3", "az", "gs"], indirect=True)
def test_an_object_that_changes_between_two_ranges_is_not_glued_together(
    store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    """The first half of one object and the second of another would have the right length."""
    dataset = make_dataset(1, SIZE)
    publish(fault_server, store, dataset)
    path = f"{root_of(store)}/reviews/train/00000.parquet"
    right = fault_server.objects[path]
    fault_server.objects[path] = bytes(reversed(right))
    # What was begun is of the wrong object; after the change back, the whole is read anew.
    fault_server.faults.extend([Reset(100_000), Change()])
    stage(store, Cache(tmp_path))
    assert_cache_is_right(Cache(tmp_path))
    assert [entry.offset for entry in fault_server.served if entry.path == path][-1] == 0


def test_a_resume_asks_only_for_what_is_missing(
    patient_store: Store, fault_server: FaultServer, tmp_path: Path
) -> None:
    store, dataset = patient_store, make_dataset(1, 3_000_000)
    publish(fault_server, store, dataset)
    fault_server.faulty = re.compile("train/00000")
    fault_server.faults.extend([Truncate(1_500_000), Truncate(500_000)])
    assert stage(store, Cache(tmp_path)) == dataset.size
    path = f"{root_of(store)}/reviews/train/00000.parquet"
    assert [entry.offset for entry in fault_server.served if entry.path == path] == [0, 1_500_000, 2_000_000]


def test_no_credential_stands_in_an_error(store: Store, fault_server: FaultServer, tmp_path: Path) -> None:
    publish(fault_server, store, make_dataset(1, 10))
    fault_server.faults.append(Denied())
    with pytest.raises(AccessError) as caught:
        stage(store, Cache(tmp_path))
    chain, error = "", caught.value
    while error is not None:
        chain += f"{error!s}{error!r}"
        error = error.__cause__  # type: ignore[assignment]
    assert not re.search(f"AKIDPLUMBLINE|secret-of|{re.escape(ACCOUNT_KEY)}|[Ss]ignature|Authorization", chain)


def random_faults(rng: random.Random) -> list[Fault]:
    makers = [
        lambda: Status(rng.choice([500, 503, 429]), rng.choice(["", "0.01", "nonsense"])),
        lambda: Reset(rng.randrange(SIZE)),
        lambda: Truncate(rng.randrange(SIZE)),
        lambda: Corrupt(rng.randrange(SIZE)),
        lambda: WrongLength(rng.choice([-1, 1, 1000])),
        FullAnswer,
        Change,
        Denied,
        Missing,
        RedirectLoop,
        lambda: Stall(rng.randrange(SIZE)),
        Trickle,
    ]
    weights = [6, 6, 6, 6, 3, 3, 0.7, 0.4, 0.4, 0.4, 0.5, 0.3]
    return [rng.choices(makers, weights)[0]() for _ in range(rng.randint(1, 10))]


def sequence_of(seed: int, rng: random.Random) -> list[Fault]:
    """Return the faults of a random sequence; the first two are refused in whatever order connections ask."""
    return [[Missing()] * 100, [Denied()] * 100][seed] if seed < 2 else random_faults(rng)


def outcome_of(store: Store, cache: Cache, connections: int) -> str:
    """Return `right`, or the error's name, after checks of time and cache."""
    begin = time.monotonic()
    try:
        stage(store, cache, connections=connections)
        outcome = "right"
    except PlumblineError as error:
        outcome = type(error).__name__
    assert time.monotonic() - begin < DEADLINE_SECONDS
    assert_cache_is_right(cache)
    return outcome


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("s3", 30), (f"s3{IN_STRIPES}", 30),
        *(pytest.param(name, 100, marks=pytest.mark.long)
          for name in ("s3", "az", "gs", f"s3{IN_STRIPES}", f"az{IN_STRIPES}")),
    ],
    indirect=["kind"],
)  # fmt: skip
def test_random_sequences(kind: str, store: Store, fault_server: FaultServer, tmp_path: Path, count: int) -> None:
    """Whatever happens in whatever order: right bytes or a known error, never anything wrong under a final name."""
    in_stripes = kind.endswith(IN_STRIPES)
    fault_server.faulty = re.compile("parquet" if in_stripes else "parquet|tokenizer")
    outcomes: Counter[str] = Counter()
    for seed in range(count):
        rng = random.Random(f"{kind} {seed}")
        publish(fault_server, store, make_dataset(3, SIZE, seed=seed))
        faults = sequence_of(seed, rng)
        if in_stripes and seed > 1:
            faults = [rng.choice([None, fault]) for fault in faults * 2]
        fault_server.faults = deque(faults)
        connections = rng.choice([2, 4, 8] if in_stripes else [1, 2, 4])
        outcomes[outcome_of(store, Cache(tmp_path / str(seed)), connections)] += 1
        assert stripe_threads() == []
    assert outcomes["right"] >= 0.3 * count, outcomes
    assert len(outcomes) >= 3, outcomes
    assert any(entry.end is not None for entry in fault_server.served) or not in_stripes


def test_a_body_is_counted_before_its_reader_has_the_last_byte(fault_server: FaultServer) -> None:
    fault_server.objects = {"/bucket/key": b"x" * 70_000}
    fault_server.rate = 100_000
    answer = urllib3.request("GET", f"{fault_server.url}/bucket/key", timeout=300)
    assert len(answer.data) == fault_server.body_bytes()
