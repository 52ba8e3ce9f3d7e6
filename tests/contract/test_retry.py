"""Numbers of the retry policy, with a fake clock and randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    RetryingStore,
    RetryPolicy,
    StoreUnavailableError,
    open_store,
    read_bytes,
)
from plumbline.night.central import find_record, publish_record, upload_policy
from plumbline.night.dispatch import ChildRun, ChildState, Job, Limits, Recorded, TrainingOrder, run_jobs
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError, UnavailableError, record_code
from plumbline.tasks import dispatch
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY, give_azure
from tests.contract.records import make_record
from tests.contract.test_handing_in import make_order
from tests.faultserver.server import FaultServer
from tests.memory_store import MemoryStore


@dataclass
class World:
    """Fake time, which passes only by sleeping or explicitly."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def policy(self, **changes: Any) -> RetryPolicy:
        return replace(self.like(RetryPolicy()), **changes)

    def like(self, policy: RetryPolicy) -> RetryPolicy:
        """Return the policy on this world's time."""
        return replace(policy, sleep=self.sleep, clock=lambda: self.now, random=lambda: 1.0)


class Flaky(MemoryStore):
    """Fails as planned, before or after the work is done."""

    def __init__(self, *failures: Exception, after: bool = False) -> None:
        super().__init__()
        self.failures = list(failures)
        self.after = after
        self.calls = 0

    def _maybe(self, work: Callable[[], ObjectInfo]) -> ObjectInfo:
        self.calls += 1
        if self.failures and not self.after:
            raise self.failures.pop(0)
        done = work()
        if self.failures:
            raise self.failures.pop(0)
        return done

    def stat(self, key: str) -> ObjectInfo:
        return self._maybe(lambda: MemoryStore.stat(self, key))

    def create(self, key: str, data: Any) -> ObjectInfo:
        return self._maybe(lambda: MemoryStore.create(self, key, data))

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        return self._maybe(lambda: MemoryStore.swap(self, key, data, if_match=if_match))


def passing(retry_after: float | None = None) -> StoreUnavailableError:
    return StoreUnavailableError("HTTP 503", where="memory://test", retry_after_seconds=retry_after)


def test_waits_double_up_to_the_longest_and_end() -> None:
    world, store = World(), Flaky(*[passing() for _ in range(9)])
    policy = world.policy(attempts=7, first_seconds=1.0, longest_seconds=5.0)
    with pytest.raises(UnavailableError, match="HTTP 503; gave up after 7 attempts in 22 s"):
        RetryingStore(store, policy).stat("key")
    assert world.slept == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    assert store.calls == 7


def test_what_takes_long_is_not_what_fails() -> None:
    """A large upload that breaks off after more than the deadline is tried again."""
    world = World()

    class Slow(Flaky):
        def create(self, key: str, data: Any) -> ObjectInfo:
            world.now += 130.0
            return super().create(key, data)

    store = Slow(passing())
    assert RetryingStore(store, world.policy()).create("key", b"large").size == 5
    assert store.calls == 2


@pytest.mark.parametrize(("patience", "seconds"), [(dispatch.PATIENCE, 60.0), (upload_policy(3600.0), 480.0)])
def test_an_outbox_may_be_away_while_a_finished_training_waits(patience: RetryPolicy, seconds: float) -> None:
    """Refused at once each time, as a server that restarts does: six quick attempts would be over in 15 s."""
    world = World()

    class Away(MemoryStore):
        def stat(self, key: str) -> ObjectInfo:
            if world.now < seconds:
                raise passing()
            return super().stat(key)

    store = Away()
    store.create("key", b"x")
    for drawn in (0.0, 1.0):
        world.now = 0.0
        policy = replace(patience, sleep=world.sleep, clock=lambda: world.now, random=lambda drawn=drawn: drawn)
        assert RetryingStore(store, policy).stat("key").size == 1


class Unreachable(MemoryStore):
    """Store that refuses every connection."""

    def create(self, *_: object) -> ObjectInfo:
        raise passing()

    def open(self, *_: object, **__: object) -> Any:
        raise passing()


class Workers:
    """Workers whose trainings fail after 12 s, on fake time; no store answers, to workers and controller alike."""

    def __init__(self, record: Path, order: TrainingOrder) -> None:
        self.world, self.order, self.record = World(), order, record
        self.ended: dict[tuple[str, int], float] = {}

    def online(self, platforms: Sequence[str]) -> dict[str, bool]:
        return dict.fromkeys(platforms, True)

    def find(self, _: object) -> set[tuple[str, int]]:
        return set()

    def start(self, attempts: Sequence[tuple[Job, int]]) -> dict[tuple[str, int], str]:
        worker, seconds = World(), 12.0
        with pytest.raises(UnavailableError):
            publish_record(RetryingStore(Unreachable(), worker.like(upload_policy(seconds))), self.record)
        runs = [(job.key, attempt) for job, attempt in attempts]
        self.ended |= dict.fromkeys(runs, self.world.now + seconds + worker.now)
        return dict.fromkeys(runs, "")

    def observe(self, runs: Sequence[tuple[str, int]]) -> dict[tuple[str, int], ChildRun]:
        now = self.world.now
        states = {run: ChildState.FAILED if now >= self.ended[run] else ChildState.RUNNING for run in runs}
        # The heartbeats of a worker continue during its upload.
        return {run: ChildRun(state, "no answer", f"{now}") for run, state in states.items()}

    def cancel(self, runs: Sequence[tuple[str, int]], *, force: bool = False) -> None:
        raise AssertionError(runs, force)

    def recorded(self, *_: object, **__: object) -> Recorded | None:
        with suppress(PlumblineError):
            return find_record(RetryingStore(Unreachable(), self.world.policy()), self.order)
        return None


def test_stores_that_stay_away_are_reported_within_five_minutes(tmp_path: Path) -> None:
    """The uploads alone took 20 minutes: 10 for each of two trainings that had failed in 12 s."""
    workers = Workers(make_record(tmp_path / "record", "record-1", "aws"), make_order(tmp_path))
    job = Job(key="job", platform="aws", start_seconds=600.0, run_seconds=7200.0, retries=1)
    world = workers.world
    results = run_jobs([job], workers, clock=lambda: world.now, sleep=world.sleep, limits=Limits())
    assert results["job"].why == "the run failed: no answer"
    assert (results["job"].attempt, results["job"].attempts) == (None, 2)
    assert world.now < 300.0, "seconds until the controller says so"


def test_jitter_is_between_half_and_all_of_the_wait() -> None:
    for drawn, wait in ((0.0, 4.0), (1.0, 8.0)):
        policy = replace(World().policy(first_seconds=1.0), random=lambda drawn=drawn: drawn)
        assert policy.delay(4, None) == wait


def test_a_server_that_says_when_is_believed_within_the_deadline() -> None:
    world, store = World(), Flaky(passing(retry_after=30.0))
    MemoryStore.create(store, "key", b"x")
    assert RetryingStore(store, world.policy()).stat("key").size == 1
    assert world.slept == [30.0]
    store.failures = [passing(retry_after=500.0)]
    with pytest.raises(UnavailableError, match="gave up after 1 attempts"):
        RetryingStore(store, world.policy()).stat("key")
    assert world.slept == [30.0], "it slept although the deadline could not be met"


@pytest.mark.parametrize("error", [AccessError("no"), ObjectMissingError("no"), ConfigurationError("no")])
def test_what_will_not_pass_is_not_tried_again(error: Exception) -> None:
    world, store = World(), Flaky(error)
    with pytest.raises(type(error)):
        RetryingStore(store, world.policy()).stat("key")
    assert (store.calls, world.slept) == (1, [])


def test_a_second_attempt_that_meets_its_own_write_has_succeeded() -> None:
    world = World()
    store = RetryingStore(Flaky(passing(), after=True), world.policy())
    assert store.create("key", b"mine").size == 4
    store = RetryingStore(Flaky(passing(), after=True), world.policy())
    assert store.swap("key", b"mine", if_match=None).size == 4
    assert read_bytes(store, "key") == b"mine"


def test_a_second_attempt_that_meets_anothers_write_has_not() -> None:
    world = World()
    inner = Flaky(passing())
    MemoryStore.create(inner, "key", b"theirs")
    with pytest.raises(ObjectExistsError):
        RetryingStore(inner, world.policy()).create("key", b"mine")
    inner.failures = [passing()]
    with pytest.raises(PreconditionFailedError):
        RetryingStore(inner, world.policy()).swap("key", b"mine", if_match=None)
    assert read_bytes(inner, "key") == b"theirs"


class Trickling(MemoryStore):
    """Reader of ten bytes per second, whose connection breaks after `breaks_after` reads."""

    def __init__(self, world: World, breaks_after: int | None = None) -> None:
        super().__init__()
        self.world = world
        self.breaks_after = breaks_after
        self.offsets: list[int] = []

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[Any]:
        self.offsets.append(offset)
        outer, reads = self, 0
        with super().open(key, offset=offset, length=length, if_match=if_match) as reader:

            class Slow:
                info = reader.info

                def readinto(self, buffer: memoryview, /) -> int:
                    nonlocal reads
                    reads += 1
                    if outer.breaks_after is not None and reads > outer.breaks_after:
                        raise passing()
                    outer.world.now += 1.0
                    return reader.readinto(buffer[:10])

            yield Slow()


def test_a_rate_below_the_lowest_is_given_up_in_time() -> None:
    world = World()
    inner = Trickling(world)
    inner.create("key", bytes(10_000))
    policy = world.policy(lowest_rate=11.0, rate_window_seconds=15.0, attempts=4, first_seconds=0.0)
    with pytest.raises(UnavailableError, match=r"only 0\.0 KiB/s arrive; gave up after 4 attempts"):
        read_bytes(RetryingStore(inner, policy), "key")
    assert inner.offsets == [0, 150, 300, 450], "bytes that arrived were asked for again"
    assert world.now == 60.0


def test_a_rate_at_the_lowest_is_slow_but_good() -> None:
    world = World()
    inner = Trickling(world)
    inner.create("key", bytes(range(250)) * 4)
    store = RetryingStore(inner, world.policy(lowest_rate=10.0))
    assert read_bytes(store, "key") == bytes(range(250)) * 4
    assert inner.offsets == [0]


def test_progress_forgets_failures_and_standing_still_does_not() -> None:
    world = World()
    inner = Trickling(world, breaks_after=10)
    inner.create("key", bytes(2000))
    fast = world.policy(lowest_rate=0.0, attempts=3, first_seconds=0.0)
    assert len(read_bytes(RetryingStore(inner, replace(fast, progress_bytes=50)), "key")) == 2000
    with pytest.raises(UnavailableError, match="gave up after 3 attempts"):
        read_bytes(RetryingStore(inner, fast), "key")


@pytest.mark.parametrize(
    "url", ["ftp://x/y", "nothing", "s3://", "az://account", "s3://key:secret@bucket/x", "gs://b?sig=1"]
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_connection_string_counts_for_its_own_account_only(
    clean_environment: pytest.MonkeyPatch, fault_server: FaultServer
) -> None:
    fault_server.objects = {f"/{ACCOUNT}/box/key": b"by string", "/other/box/key": b"by variable"}
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
    text += f"BlobEndpoint={fault_server.url}/{ACCOUNT};"
    clean_environment.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    assert read_bytes(open_store(f"az://{ACCOUNT}/box"), "key") == b"by string"
    give_azure(clean_environment, fault_server.url + "/{account}")
    assert read_bytes(open_store("az://other/box"), "key") == b"by variable"


def test_an_object_that_changes_while_it_is_read_is_not_read_on() -> None:
    world = World()
    inner = Trickling(world, breaks_after=3)
    etag = inner.create("key", b"a" * 100).etag
    buffer = memoryview(bytearray(10))
    with RetryingStore(inner, world.policy(lowest_rate=0.0)).open("key") as reader:
        for _ in range(3):
            assert reader.readinto(buffer) == 10
        inner.swap("key", b"b" * 100, if_match=etag)
        with pytest.raises(PreconditionFailedError) as caught:
            reader.readinto(buffer)
    # A manifest that is published while a training reads it: the next attempt reads the new one.
    assert record_code(caught.value) == "unavailable"
