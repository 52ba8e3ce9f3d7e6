"""Loop over 20 platforms with random failures: no child left, no attempt twice."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from plumbline.night.dispatch import ChildRun, ChildState, Job, Limits, Recorded, RecordKind, run_jobs

RUN_SECONDS = 300.0
FAULTS = (
    "crash",
    "crash twice",
    "lost",
    "hang",
    "no worker",
    "late worker",
    "cancelled",
    "crash after record",
    "reset",
    "store",
    "store twice",
)
GOOD = {"", "crash", "lost", "late worker", "crash after record", "reset", "store"}


@dataclass
class World:
    """Simulated cloud with one-second steps, seen through `Orchestrator` only."""

    faults: Mapping[str, str]
    now: float = 0.0
    started: dict[tuple[str, int], float] = field(default_factory=dict)
    cancelled: dict[tuple[str, int], float] = field(default_factory=dict)
    starts: list[tuple[str, int]] = field(default_factory=list)
    away: tuple[float, float] = (1e9, 1e9)
    reads: int = 0

    def clock(self) -> float:
        self.reads += 1
        assert self.reads < 20_000, "the round does not end"
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        assert self.now < 10_000, "the round does not end"
        self.now += seconds

    def _server_away(self) -> bool:
        return self.away[0] <= self.now < self.away[1]

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:
        if self._server_away():
            return None
        late = {"no worker": 1e9, "late worker": 40.0}
        return {name: self.now >= late.get(self.faults[name], 0.0) for name in platforms}

    def find(self, runs: Sequence[tuple[str, int]]) -> list[tuple[str, int]] | None:
        return None if self._server_away() else [run for run in runs if run in self.started]

    def start(self, attempts: Sequence[tuple[Job, int]]) -> dict[tuple[str, int], str]:
        answers = {(job.key, attempt): self.start_one(job, attempt) for job, attempt in attempts}
        return {run: answer for run, answer in answers.items() if answer is not None}

    def start_one(self, job: Job, attempt: int) -> str | None:
        if self._server_away():
            return None
        if (job.key, attempt) not in self.started:
            self.starts.append((job.key, attempt))
        self.started.setdefault((job.key, attempt), self.now)
        return ""

    def _fault(self, run: tuple[str, int]) -> str:
        fault = self.faults[run[0]]
        again = {"crash": 1, "lost": 1, "reset": 1, "crash twice": 2, "store": 1, "store twice": 2}
        return fault if run[1] < again.get(fault, 99) else ""

    def _child(self, run: tuple[str, int]) -> ChildRun:
        age, fault = self.now - self.started[run], self._fault(run)
        if run in self.cancelled and fault != "lost":
            return ChildRun(ChildState.CANCELLED)
        endings = {
            "crash": (20, ChildRun(ChildState.CRASHED, "killed by SIGKILL")),
            "crash twice": (20, ChildRun(ChildState.CRASHED, "killed by SIGKILL")),
            "reset": (15, ChildRun(ChildState.FAILED, "connection reset")),
            "store": (20, ChildRun(ChildState.FAILED, "access refused", retryable=False)),
            "store twice": (20, ChildRun(ChildState.FAILED, "access refused", retryable=False)),
            "cancelled": (10, ChildRun(ChildState.CANCELLED)),
            "crash after record": (60, ChildRun(ChildState.CRASHED, "worker is gone")),
            "hang": (1e9, ChildRun(ChildState.RUNNING)),
            "lost": (1e9, ChildRun(ChildState.RUNNING)),
        }
        ends, child = endings.get(fault, (60, ChildRun(ChildState.COMPLETED)))
        if age < 3 or fault == "no worker":
            return ChildRun(ChildState.SCHEDULED)
        beats = min(int(age), 10) if fault == "lost" else int(age)
        return child if age > ends else ChildRun(ChildState.RUNNING, alive=str(beats))

    def observe(self, runs: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], ChildRun] | None:
        if self._server_away():
            return None
        return {run: self._child(run) for run in runs if run in self.started}

    def cancel(self, runs: Sequence[tuple[str, int]], *, force: bool = False) -> None:  # noqa: ARG002 - the port's
        for run in runs:
            self.cancelled.setdefault(run, self.now)

    def recorded(self, job: Job, attempt: int, *, has_ended: bool) -> Recorded | None:  # noqa: ARG002 - the port's
        run = (job.key, attempt)
        age, fault = self.now - self.started.get(run, 1e9), self._fault(run)
        if fault.startswith("store") and age > 19:
            return Recorded(RecordKind.INFRASTRUCTURE, "the store is gone")
        done = fault in ("", "late worker", "crash after record") and run not in self.cancelled and age > 59
        return Recorded(RecordKind.COMPLETE if done else RecordKind.ABSENT)

    def live(self) -> list[tuple[str, int]]:
        return [run for run in self.started if not self._child(run).state.final and run not in self.cancelled]


def jobs_of(names: Sequence[str]) -> list[Job]:
    return [Job(name, name, start_seconds=90, run_seconds=RUN_SECONDS, retries=1) for name in names]


@pytest.mark.parametrize("seed", range(20))
def test_twenty_platforms_with_five_failures(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"p{index:02}" for index in range(20)]
    faults = dict.fromkeys(names, "") | {name: chance.choice(FAULTS) for name in chance.sample(names, 5)}
    world = World(faults)
    if chance.random() < 0.5:
        begin = chance.uniform(1, 80)
        world.away = (begin, begin + 20)
    results = run_jobs(jobs_of(names), world, clock=world.clock, sleep=world.sleep, limits=Limits())
    assert {name: result.attempt is not None for name, result in results.items()} == {
        # A record of an infrastructure failure is gathered too: it says why the platform is inconclusive.
        name: fault in GOOD or fault == "store twice"
        for name, fault in faults.items()
    }
    assert all(result.why for result in results.values() if result.attempt is None)
    assert {results[name].attempts for name, fault in faults.items() if fault.startswith("store")} <= {2}
    assert world.live() == []
    assert len(world.starts) == len(set(world.starts))
    assert world.now < 2 * (90 + RUN_SECONDS + 60 + 30)


class DeadStore(World):
    """A world in which each look into a's outbox takes longer than a child may be silent."""

    def recorded(self, job: Job, attempt: int, *, has_ended: bool) -> Recorded | None:
        if job.key == "a":
            self.now += Limits().lost_seconds + 15
            return None
        return super().recorded(job, attempt, has_ended=has_ended) if self.now > 260 else Recorded(RecordKind.ABSENT)

    def _child(self, run: tuple[str, int]) -> ChildRun:
        child = super()._child(run)
        age = self.now - self.started[run]
        if run[0] == "b" and 3 <= age < 250:
            # It reports every twenty seconds.
            return ChildRun(ChildState.RUNNING, alive=str(int(age) // 20))
        return child


def test_a_store_that_does_not_answer_makes_no_other_platform_silent() -> None:
    world = DeadStore({"a": "hang", "b": ""})
    results = run_jobs(jobs_of(["a", "b"]), world, clock=world.clock, sleep=world.sleep)
    assert ("b", 0) not in world.cancelled
    assert (results["b"].attempt, results["b"].notes) == (0, ())


def test_whatever_ends_the_controller_the_children_are_cancelled() -> None:
    world = World({"a": "", "b": ""})

    def interrupted(seconds: float) -> None:
        world.sleep(seconds)
        if world.now > 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs_of(["a", "b"]), world, clock=world.clock, sleep=interrupted)
    assert set(world.cancelled) == {("a", 0), ("b", 0)}


def test_the_jobs_of_one_platform_run_one_after_another() -> None:
    world = World({"w1": "", "w2": "", "w3": "", "aws": ""})
    jobs = [Job(key, "aws", 90, RUN_SECONDS, 0) for key in ("w1", "w2", "w3")]
    run_jobs(jobs, world, clock=world.clock, sleep=world.sleep)
    assert world.started["w2", 0] - world.started["w1", 0] > 60
    assert world.started["w3", 0] - world.started["w2", 0] > 60


def test_a_platform_with_room_trains_several_jobs_at_once_in_their_order() -> None:
    names = [f"w{number}" for number in range(5)]
    world = World(dict.fromkeys([*names, "aws"], ""))
    jobs = [Job(name, "aws", 90, RUN_SECONDS, 0, at_once=2) for name in names]
    results = run_jobs(jobs, world, clock=world.clock, sleep=world.sleep)
    assert {result.attempt for result in results.values()} == {0}
    assert [key for key, _ in world.starts] == names
    started = [world.started[name, 0] for name in names]
    assert started[0] == started[1]
    assert all(after - before > 60 for before, after in zip(started, started[2:], strict=False))


class Killed(World):
    """Orchestrator of a killed controller, which cancels no run."""

    def cancel(self, runs: Sequence[tuple[str, int]], *, force: bool = False) -> None:  # noqa: ARG002 - the port's
        return


def test_a_controller_started_again_finds_its_children() -> None:
    first = Killed({"a": "crash"})

    def sleep(seconds: float) -> None:
        first.sleep(seconds)
        if first.now > 40:
            raise MemoryError

    with pytest.raises(MemoryError):
        run_jobs(jobs_of(["a"]), first, clock=first.clock, sleep=sleep)
    second = World(first.faults, now=first.now, started=first.started, starts=first.starts)
    results = run_jobs(jobs_of(["a"]), second, clock=second.clock, sleep=second.sleep)
    assert results["a"].attempt == 1
    assert second.starts == [("a", 0), ("a", 1)]


def test_a_controller_started_again_goes_on_with_the_attempt_that_the_one_before_came_to() -> None:
    world = World({"a": "lost"}, now=100.0, started={("a", 0): 0.0, ("a", 1): 90.0}, away=(100.0, 110.0))
    cancelled = ChildRun(ChildState.CANCELLED)
    child = world._child
    world._child = lambda run: cancelled if run == ("a", 0) else child(run)  # type: ignore[method-assign]
    results = run_jobs(jobs_of(["a"]), world, clock=world.clock, sleep=world.sleep)
    assert results["a"].attempt == 1
    assert results["a"].notes[0] == "attempt 1 failed, as an earlier controller of this round saw"
    assert world.starts == []
    assert world.live() == []


def test_a_cancel_that_an_ended_controller_left_behind_is_no_persons_and_costs_no_retry() -> None:
    world = World({"a": ""}, now=100.0, started={("a", 0): 0.0}, cancelled={("a", 0): 90.0})
    results = run_jobs(jobs_of(["a"]), world, clock=world.clock, sleep=world.sleep)
    assert (results["a"].attempt, world.starts) == (1, [("a", 1)])


def test_a_platform_for_which_nothing_is_deployed_takes_no_other_with_it() -> None:
    world = World({"new": "", "aws": ""})
    start, refused = world.start_one, list[str]()

    def start_or_refuse(job: Job, attempt: int) -> str | None:
        if job.platform == "new":
            refused.append(job.key)
            return "its training is not deployed"
        return start(job, attempt)

    world.start_one = start_or_refuse  # type: ignore[method-assign]
    results = run_jobs(jobs_of(["new", "aws"]), world, clock=world.clock, sleep=world.sleep)
    assert (results["new"].attempt, results["new"].why) == (None, "its training is not deployed")
    assert results["aws"].attempt == 0
    assert world.cancelled == {}
    assert refused == ["new"]


def test_what_an_earlier_controller_dispatched_ends_with_the_next_one_though_no_worker_is_online() -> None:
    world = World({"a": "no worker", "b": "no worker"}, started={("a", 0): 0.0}, away=(0.0, 20.0))
    results = run_jobs(jobs_of(["a", "b"]), world, clock=world.clock, sleep=world.sleep)
    assert [results[name].why for name in "ab"] == [
        "no worker started the run within 90 s (start_seconds)", "no worker came online within 90 s (start_seconds)",
    ]  # fmt: skip
    assert world.live() == []
    assert world.starts == []


class Unnamed(World):
    """World that does not say whether a platform's workers are online."""

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:
        return {name: is_online for name, is_online in (super().online(platforms) or {}).items() if name != "a"}


def test_a_platform_that_is_not_said_to_be_online_is_not() -> None:
    world = Unnamed({"a": "", "b": ""})
    results = run_jobs(jobs_of(["a", "b"]), world, clock=world.clock, sleep=world.sleep)
    assert results["a"].why == "no worker came online within 90 s (start_seconds)"
    assert world.starts == [("b", 0)]


@dataclass
class Logged(World):
    """World that logs each call of the loop."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        super().sleep(seconds)

    def find(self, runs: Sequence[tuple[str, int]]) -> list[tuple[str, int]] | None:
        self.calls.append(("find", *runs))
        return super().find(runs)

    def start_one(self, job: Job, attempt: int) -> str | None:
        self.calls.append(("start", job.key, attempt))
        return super().start_one(job, attempt)

    def cancel(self, runs: Sequence[tuple[str, int]], *, force: bool = False) -> None:
        self.calls.append(("cancel", *runs, force))
        super().cancel(runs, force=force)

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def test_each_run_is_found_and_started_once_and_an_ended_run_is_not_cancelled() -> None:
    world = Logged({"a": "", "b": "", "c": ""})
    jobs = [*jobs_of(["a", "b"]), Job("c", "a", 90, RUN_SECONDS, 0)]
    results = run_jobs(jobs, world, clock=world.clock, sleep=world.sleep)
    assert set(results) == {"a", "b", "c"}
    assert world.named("start") == [("a", 0), ("b", 0), ("c", 0)]
    assert world.named("find") == [(("a", 0), ("a", 1)), (("b", 0), ("b", 1)), (("c", 0),)]
    assert world.named("cancel") == []


def test_a_start_without_an_answer_is_repeated_until_it_is_known() -> None:
    world = Logged({"a": ""})
    start, answers = world.start_one, [None, None]

    def unknown(job: Job, attempt: int) -> str | None:
        start(job, attempt)
        return answers.pop() if answers else ""

    world.start_one = unknown  # type: ignore[method-assign]
    results = run_jobs(jobs_of(["a"]), world, clock=world.clock, sleep=world.sleep)
    assert results["a"].attempt == 0
    assert world.named("start") == [("a", 0)] * 3


def test_a_run_that_does_not_end_is_cancelled_and_then_marked_as_ended() -> None:
    world = Logged({"a": "lost"})
    results = run_jobs([Job("a", "a", 90, RUN_SECONDS, 0)], world, clock=world.clock, sleep=world.sleep)
    assert results["a"].attempt is None
    # It may still run: it is cancelled a last time.
    assert world.named("cancel") == [(("a", 0), False), (("a", 0), True), (("a", 0), False)]


def test_runs_of_which_the_server_says_nothing_are_cancelled_at_the_end() -> None:
    for answer in (None, {}):
        world = Logged({"a": "", "b": ""})

        def interrupted(
            seconds: float, world: Logged = world, answer: dict[tuple[str, int], ChildRun] | None = answer
        ) -> None:
            world.sleep(seconds)
            if world.now > 20:
                world.observe = lambda _: answer  # type: ignore[method-assign]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_jobs(jobs_of(["a", "b"]), world, clock=world.clock, sleep=interrupted)
        assert world.named("cancel") == [(("a", 0), ("b", 0), False)]


def test_only_runs_that_have_not_ended_are_cancelled_at_the_end() -> None:
    world = Logged({"a": "", "b": "no worker", "c": "cancelled"})
    world.faults = {**world.faults, "b": ""}
    jobs = [Job("a", "a", 90, RUN_SECONDS, 0), Job("c", "c", 90, RUN_SECONDS, 0)]

    def interrupted(seconds: float) -> None:
        world.sleep(seconds)
        if world.now > 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, world, clock=world.clock, sleep=interrupted)
    assert world.named("cancel") == [(("a", 0), False)]


def test_pauses_grow_while_nothing_moves_and_begin_anew_when_something_does() -> None:
    world = Logged({"a": ""})
    run_jobs(jobs_of(["a"]), world, clock=world.clock, sleep=world.sleep)
    assert (world.pauses[0], min(world.pauses), max(world.pauses)) == (1.0, 1.0, 3.0)
    assert all(after in (1.0, min(before * 1.25, 3.0)) for before, after in pairwise(world.pauses))
    again = [index for index, pause in enumerate(world.pauses) if index and pause == 1.0]
    assert again
    still = Logged({"a": "no worker"})
    run_jobs(jobs_of(["a"]), still, clock=still.clock, sleep=still.sleep)
    assert still.pauses[:6] == [1.25, 1.5625, 1.953125, 2.44140625, 3.0, 3.0]


def test_the_last_of_an_earlier_controllers_attempts_is_adopted_in_any_order() -> None:
    for runs in ([("a", 0), ("a", 1)], [("a", 1), ("a", 0)]):
        world = Logged({"a": ""}, now=100.0, started={("a", 0): 0.0, ("a", 1): 90.0})
        world.find = lambda _, runs=runs: runs  # type: ignore[method-assign]
        results = run_jobs(jobs_of(["a"]), world, clock=world.clock, sleep=world.sleep)
        assert (results["a"].attempt, results["a"].attempts) == (1, 2)


def test_no_jobs_are_done_at_once() -> None:
    world = Logged({})
    assert run_jobs([], world, clock=world.clock, sleep=world.sleep) == {}
    assert (world.calls, world.pauses) == ([], [])


def test_a_platforms_machines_are_kept_up_until_its_own_last_job() -> None:
    """One slow platform used to keep all machines up: nine for six hours."""
    hours = {"slow": 6, **{f"p{number}": 1 for number in range(8)}}
    jobs = [Job(f"{name}-{hour}", name, 60.0, RUN_SECONDS, 0) for name, count in hours.items() for hour in range(count)]
    world = World(dict.fromkeys((*hours, *(job.key for job in jobs)), ""))
    seen: list[tuple[float, frozenset[str]]] = []
    run_jobs(
        jobs, world, clock=world.clock, sleep=world.sleep,
        keep_up=lambda platforms: seen.append((world.now, platforms)),
    )  # fmt: skip
    assert seen[0] == (0.0, frozenset(hours))
    assert seen[-1][1] == {"slow"}
    ends = [*(time for time, _ in seen[1:]), world.now]
    up = sum((end - begin) * len(platforms) for (begin, platforms), end in zip(seen, ends, strict=True))
    hour = world.now / 6
    assert 13 <= up / hour < 15
