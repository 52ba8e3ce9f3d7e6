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

from plumbline.dispatch.states import Action, Child, ChildState, Job, Limits, Phase, Result, View

__all__ = ["Lane", "advance", "begin"]


@dataclass(frozen=True, slots=True)
class Lane:
    """The state of one job."""

    job: Job
    since: float
    phase: Phase = Phase.SEEKING
    attempt: int = 0
    taken_over: bool = False
    """This attempt was dispatched by a controller before this one."""
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
    left = view.left is not None and view.left >= lane.attempt
    if view.online or left:
        lane = _take_over(lane, view.left) if left and view.left is not None else lane
        lane = replace(lane, phase=Phase.WAITING, phase_since=now, waited=now - lane.since, seen_at=now)
        return lane, Action.START
    if now - lane.since <= lane.job.start_seconds:
        return lane, Action.NONE
    who = "the Prefect API did not answer" if view.online is None else "no worker came online"
    return _done(lane, None, f"{who} within {lane.job.start_seconds:g} s", now), Action.NONE


def _take_over(lane: Lane, attempt: int) -> Lane:
    """Go on with the attempt that an earlier controller came to: it had seen those before fail."""
    failed = range(lane.attempt + 1, attempt + 1)
    notes = tuple(f"attempt {one} failed, as an earlier controller of this round saw" for one in failed)
    return replace(lane, attempt=attempt, taken_over=True, notes=(*lane.notes, *notes))


def _wait(lane: Lane, view: View, now: float, limits: Limits) -> tuple[Lane, Action]:
    if view.refused:
        return _done(lane, None, view.refused, now), Action.NONE
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
    retryable = child.retryable and (child.state is not ChildState.CANCELLED or _inherited(lane, child))
    lane = replace(lane, phase=Phase.SETTLING, phase_since=now, why=words[child.state], retryable=retryable)
    return lane, Action.LOOK


def _inherited(lane: Lane, child: Child) -> bool:
    """Whether a controller before this one cancelled it, at its own end, and no person did."""
    if child.by_person is not None:
        return not child.by_person
    # One that no worker has started yet ends at once, and who asked is not kept.
    return lane.taken_over and lane.running_since is None


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
