"""One training as the controller sees it: a state machine over what Prefect and the outbox say, and the clock.

    seeking ──online──▶ waiting ──runs──▶ running ──ends──▶ settling ──▶ done
       │                   │                 │                 ▲  │
       └─start deadline    └─start deadline  └─run deadline,   │  └─ no record, infrastructure: seeking again
                             ▼                 lost            │
                           cancelling ─────────────────────────┘

Times are seconds of a monotonic clock: a wall clock that jumps moves no deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["Action", "Child", "ChildState", "Job", "Lane", "Limits", "Phase", "Result", "View", "advance", "begin"]


class ChildState(Enum):
    """A flow run's state, as far as it matters here."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    """A worker has taken it, and has yet to start it."""
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CRASHED = "crashed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether it will not change any more."""
        return self not in (ChildState.SCHEDULED, ChildState.PENDING, ChildState.RUNNING)


class Phase(Enum):
    """Where a lane stands."""

    SEEKING = "seeking"
    WAITING = "waiting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SETTLING = "settling"
    DONE = "done"


class Action(Enum):
    """What the loop has to do for a lane before it looks again."""

    NONE = "none"
    START = "start"
    CANCEL = "cancel"
    FORCE = "force"
    """Nobody ended it: hold it for ended, so that its place in the work pool is free."""
    LOOK = "look"
    """See whether the outbox holds the complete record."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that no suite sets."""

    lost_seconds: float = 60.0
    """A running child that shows no sign of life for so long is lost; it sends one every few seconds."""
    look_seconds: float = 10.0
    """How often the outbox is looked at while a child runs: Prefect may have lost it, and yet it wrote its record."""
    cancel_seconds: float = 30.0
    """How long a cancelled child may take to end."""
    settle_seconds: float = 60.0
    """How long an unreachable outbox is asked whether the record is there."""
    gap_seconds: float = 10.0
    """The most that the time between two answers of the server counts as waiting for a worker: it may have hung."""
    away_seconds: float = 120.0
    """How long past the start deadline a server that does not answer is waited for."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training to dispatch."""

    key: str
    platform: str
    start_seconds: float
    run_seconds: float
    retries: int


@dataclass(frozen=True, slots=True)
class Child:
    """What Prefect says of a dispatched run."""

    state: ChildState
    message: str = ""
    alive: str = ""
    """Changes with every sign of life."""
    retryable: bool = True
    """For a failure: whether it was one of infrastructure."""


@dataclass(frozen=True, slots=True)
class View:
    """What is seen of a lane now; `None` where nothing could be seen."""

    online: bool | None = None
    child: Child | None = None
    recorded: bool | None = None
    found: bool = False
    """It was dispatched already, by a controller before this one."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a lane ended: with the attempt whose record is complete, or without one, and why."""

    attempt: int | None
    why: str = ""
    notes: tuple[str, ...] = ()
    attempts: int = 0
    waited_seconds: float = 0.0
    ran_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """The state of one job."""

    job: Job
    since: float
    phase: Phase = Phase.SEEKING
    attempt: int = 0
    waited: float = 0.0
    """How long the server has been seen to have it waiting for a worker."""
    seen_at: float = 0.0
    running_since: float | None = None
    alive: str = ""
    alive_at: float = 0.0
    looked_at: float = 0.0
    phase_since: float = 0.0
    why: str = ""
    retryable: bool = False
    notes: tuple[str, ...] = ()
    result: Result | None = None


def begin(job: Job, now: float) -> Lane:
    """A lane at its start."""
    return Lane(job=job, since=now, phase_since=now)


def advance(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    """The lane's next state, and what to do for it."""
    steps = {
        Phase.SEEKING: _seek,
        Phase.WAITING: _wait,
        Phase.RUNNING: _run,
        Phase.CANCELLING: _cancel,
        Phase.SETTLING: _settle,
    }
    if lane.phase is Phase.DONE:
        return lane, Action.NONE
    return steps[lane.phase](lane, view, now, limits)


def _seek(lane: Lane, view: View, now: float, _: Limits) -> tuple[Lane, Action]:
    if view.online or view.found:
        lane = replace(lane, phase=Phase.WAITING, phase_since=now, waited=now - lane.since, seen_at=now)
        return lane, Action.START
    if now - lane.since <= lane.job.start_seconds:
        return lane, Action.NONE
    who = "the Prefect API did not answer" if view.online is None else "no worker came online"
    return _done(lane, None, f"{who} within {lane.job.start_seconds:g} s", now), Action.NONE


def _wait(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    if view.child is not None and view.child.state is ChildState.RUNNING:
        lane = replace(
            lane, phase=Phase.RUNNING, running_since=now, alive=view.child.alive, alive_at=now, looked_at=now
        )
        return lane, Action.NONE
    if view.child is not None and view.child.state.final:
        return _ended(lane, view.child, now)
    within = f"within {lane.job.start_seconds:g} s"
    if view.child is not None:
        # A server that hung for a while could give it to no worker in that time.
        lane = replace(lane, waited=lane.waited + min(now - lane.seen_at, limits.gap_seconds), seen_at=now)
        if lane.waited > lane.job.start_seconds:
            # One that a worker took was lost with its process, when nobody was there to hear of it.
            taken = view.child.state is ChildState.PENDING
            why = f"a worker took it and did not start it {within}" if taken else f"no worker started it {within}"
            return _give_up(lane, why, now, retryable=taken)
    elif now - lane.since > lane.job.start_seconds + limits.away_seconds:
        return _give_up(lane, f"the Prefect API did not answer {within}, nor {limits.away_seconds:g} s later", now)
    return lane, Action.NONE


def _run(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    if view.child is not None:
        if view.child.state.final:
            return _ended(lane, view.child, now)
        if view.child.alive != lane.alive:
            lane = replace(lane, alive=view.child.alive, alive_at=now)
    elif view.recorded is None:
        # The server is away: silence says nothing of the child.
        lane = replace(lane, alive_at=now)
    if view.recorded:
        lane = replace(lane, phase=Phase.CANCELLING, phase_since=now, why="Prefect has not seen its end")
        return lane, Action.NONE
    if lane.running_since is not None and now - lane.running_since > lane.job.run_seconds:
        return _give_up(lane, f"it ran longer than {lane.job.run_seconds:g} s", now)
    if now - lane.alive_at > limits.lost_seconds:
        why = f"it showed no sign of life for {limits.lost_seconds:g} s"
        return _give_up(lane, why, now, retryable=True)
    if now - lane.looked_at >= limits.look_seconds:
        return replace(lane, looked_at=now), Action.LOOK
    return lane, Action.NONE


def _cancel(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    if view.child is not None and view.child.state.final:
        return replace(lane, phase=Phase.SETTLING, phase_since=now), Action.LOOK
    if now - lane.phase_since > limits.cancel_seconds:
        why = f"{lane.why}, and did not end when it was cancelled"
        return replace(lane, phase=Phase.SETTLING, phase_since=now, why=why), Action.FORCE
    return lane, Action.NONE


def _settle(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    if view.recorded is None and now - lane.phase_since <= limits.settle_seconds:
        return lane, Action.LOOK
    if view.recorded:
        note = (f"the run's record is complete, though {lane.why}",) if lane.why else ()
        return _done(replace(lane, notes=lane.notes + note), lane.attempt, "", now), Action.NONE
    why = lane.why or "it completed without a record"
    if lane.retryable and lane.attempt < lane.job.retries:
        notes = (*lane.notes, f"attempt {lane.attempt + 1} failed: {why}")
        again = Lane(job=lane.job, since=now, phase_since=now, attempt=lane.attempt + 1, notes=notes)
        return again, Action.NONE
    return _done(lane, None, why, now), Action.NONE


def _ended(lane: Lane, child: Child, now: float) -> tuple[Lane, Action]:
    """A final state of Prefect's is a hint; the record decides."""
    words = {
        ChildState.COMPLETED: "",
        ChildState.FAILED: f"it failed: {child.message}",
        ChildState.CRASHED: f"Prefect calls it crashed: {child.message}",
        ChildState.CANCELLED: "it was cancelled",
    }
    retryable = child.state is not ChildState.CANCELLED and child.retryable
    lane = replace(lane, phase=Phase.SETTLING, phase_since=now, why=words[child.state], retryable=retryable)
    return lane, Action.LOOK


def _give_up(lane: Lane, why: str, now: float, *, retryable: bool = False) -> tuple[Lane, Action]:
    lane = replace(lane, phase=Phase.CANCELLING, phase_since=now, why=why, retryable=retryable)
    return lane, Action.CANCEL


def _done(lane: Lane, attempt: int | None, why: str, now: float) -> Lane:
    running = lane.running_since
    result = Result(
        attempt=attempt,
        why=why,
        notes=lane.notes,
        attempts=lane.attempt + 1,
        waited_seconds=(running if running is not None else now) - lane.since,
        ran_seconds=now - running if running is not None else 0.0,
    )
    return replace(lane, phase=Phase.DONE, result=result)
