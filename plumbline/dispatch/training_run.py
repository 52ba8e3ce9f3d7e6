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

from plumbline.dispatch.states import (
    Action,
    ChildRun,
    ChildState,
    Job,
    Limits,
    Phase,
    Recorded,
    RecordKind,
    Result,
    View,
)

__all__ = ["TrainingRun", "advance", "begin"]


@dataclass(frozen=True, slots=True)
class TrainingRun:
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
    stopped: bool = False
    """A person or a deadline ended it: what its record says of the machine is only the consequence."""
    is_recorded: bool = False
    """Its record was seen before its end: it is about to end, and nothing cancels it."""
    notes: tuple[str, ...] = ()
    result: Result | None = None


def begin(job: Job, now: float) -> TrainingRun:
    """A lane at its start."""
    return TrainingRun(job=job, since=now, phase_since=now)


def advance(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    """The lane's next state, and what to do for it."""
    steps = {
        Phase.SEEKING: _seek,
        Phase.WAITING: _wait,
        Phase.RUNNING: _run,
        Phase.CANCELLING: _cancel,
        Phase.SETTLING: _settle,
    }
    if training.phase is Phase.DONE:
        return training, Action.NONE
    return steps[training.phase](training, view, now, limits)


def _seek(training: TrainingRun, view: View, now: float, _: Limits) -> tuple[TrainingRun, Action]:
    left = view.left is not None and view.left >= training.attempt
    if view.online or left:
        training = _take_over(training, view.left) if left and view.left is not None else training
        training = replace(training, phase=Phase.WAITING, phase_since=now, waited=now - training.since, seen_at=now)
        return training, Action.START
    if now - training.since <= training.job.start_seconds:
        return training, Action.NONE
    who = "the Prefect API did not answer" if view.online is None else "no worker came online"
    return _done(training, None, f"{who} within {training.job.start_seconds:g} s", now), Action.NONE


def _take_over(training: TrainingRun, attempt: int) -> TrainingRun:
    """Go on with the attempt that an earlier controller came to: it had seen those before fail."""
    failed = range(training.attempt + 1, attempt + 1)
    notes = tuple(f"attempt {one} failed, as an earlier controller of this round saw" for one in failed)
    return replace(training, attempt=attempt, taken_over=True, notes=(*training.notes, *notes))


def _wait(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.refused:
        return _done(training, None, view.refused, now), Action.NONE
    if view.child is not None and view.child.state is ChildState.RUNNING:
        training = replace(
            training, phase=Phase.RUNNING, running_since=now, alive=view.child.alive, alive_at=now, looked_at=now
        )
        return training, Action.NONE
    if view.child is not None and view.child.state.final:
        return _ended(training, view.child, now)
    within = f"within {training.job.start_seconds:g} s"
    if view.child is not None:
        # A server that hung for a while could give it to no worker in that time.
        training = replace(
            training, waited=training.waited + min(now - training.seen_at, limits.gap_seconds), seen_at=now
        )
        if training.waited > training.job.start_seconds:
            # One that a worker took was lost with its process, when nobody was there to hear of it.
            taken = view.child.state is ChildState.PENDING
            why = f"a worker took it and did not start it {within}" if taken else f"no worker started it {within}"
            return _give_up(training, why, now, retryable=taken)
    elif now - training.since > training.job.start_seconds + limits.away_seconds:
        return _give_up(training, f"the Prefect API did not answer {within}, nor {limits.away_seconds:g} s later", now)
    return training, Action.NONE


def _run(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.child is not None:
        if view.child.state.final:
            return _ended(training, view.child, now)
        if view.child.alive != training.alive:
            training = replace(training, alive=view.child.alive, alive_at=now)
    elif view.recorded is None:
        # The server is away: silence says nothing of the child.
        training = replace(training, alive_at=now)
    if view.recorded is not None and view.recorded.kind in (RecordKind.COMPLETE, RecordKind.INFRASTRUCTURE):
        why = "Prefect has not seen its end"
        training = replace(training, phase=Phase.CANCELLING, phase_since=now, why=why, is_recorded=True)
        return training, Action.NONE
    if training.running_since is not None and now - training.running_since > training.job.run_seconds:
        return _give_up(training, f"it ran longer than {training.job.run_seconds:g} s", now)
    if now - training.alive_at > limits.lost_seconds:
        why = f"it showed no sign of life for {limits.lost_seconds:g} s"
        return _give_up(training, why, now, retryable=True)
    if now - training.looked_at >= limits.look_seconds:
        return replace(training, looked_at=now), Action.LOOK
    return training, Action.NONE


def _cancel(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.child is not None and view.child.state.final:
        # Its record was looked at in the moment between the record and the end: nothing is worth a note.
        is_as_usual = training.is_recorded and view.child.state is ChildState.COMPLETED
        why = "" if is_as_usual else training.why
        return replace(training, phase=Phase.SETTLING, phase_since=now, why=why), Action.LOOK
    if now - training.phase_since > limits.cancel_seconds:
        why = training.why if training.is_recorded else f"{training.why}, and did not end when it was cancelled"
        return replace(training, phase=Phase.SETTLING, phase_since=now, why=why), Action.FORCE
    return training, Action.NONE


def _settle(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.recorded is None and now - training.phase_since <= limits.settle_seconds:
        return training, Action.LOOK
    found = view.recorded or Recorded(RecordKind.ABSENT)
    if found.kind in (RecordKind.COMPLETE, RecordKind.FOREIGN):
        complete = found.kind is RecordKind.COMPLETE and training.why
        note = (f"the run's record is complete, though {training.why}",) if complete else ()
        return _done(replace(training, notes=training.notes + note), training.attempt, "", now), Action.NONE
    infrastructure = found.kind is RecordKind.INFRASTRUCTURE
    why = (found.why if infrastructure and not training.stopped else training.why) or "it completed without a record"
    retryable = not training.stopped if infrastructure else training.retryable
    if retryable and training.attempt < training.job.retries:
        notes = (*training.notes, f"attempt {training.attempt + 1} failed: {why}")
        again = TrainingRun(job=training.job, since=now, phase_since=now, attempt=training.attempt + 1, notes=notes)
        return again, Action.NONE
    return _done(training, training.attempt if infrastructure else None, why, now), Action.NONE


def _ended(training: TrainingRun, child: ChildRun, now: float) -> tuple[TrainingRun, Action]:
    """A final state of Prefect's is a hint; the record decides."""
    words = {
        ChildState.COMPLETED: "",
        ChildState.FAILED: f"it failed: {child.message}",
        ChildState.CRASHED: f"Prefect calls it crashed: {child.message}",
        ChildState.CANCELLED: "it was cancelled",
    }
    stopped = child.state is ChildState.CANCELLED and not _inherited(training, child)
    training = replace(
        training, phase=Phase.SETTLING, phase_since=now, why=words[child.state], stopped=stopped,
        retryable=child.retryable and not stopped,
    )  # fmt: skip
    return training, Action.LOOK


def _inherited(training: TrainingRun, child: ChildRun) -> bool:
    """Whether a controller before this one cancelled it, at its own end, and no person did."""
    if child.by_person is not None:
        return not child.by_person
    # One that no worker has started yet ends at once, and who asked is not kept.
    return training.taken_over and training.running_since is None


def _give_up(training: TrainingRun, why: str, now: float, *, retryable: bool = False) -> tuple[TrainingRun, Action]:
    training = replace(
        training, phase=Phase.CANCELLING, phase_since=now, why=why, retryable=retryable, stopped=not retryable
    )
    return training, Action.CANCEL


def _done(training: TrainingRun, attempt: int | None, why: str, now: float) -> TrainingRun:
    running = training.running_since
    result = Result(
        attempt=attempt,
        why=why,
        notes=training.notes,
        attempts=training.attempt + 1,
        waited_seconds=(running if running is not None else now) - training.since,
        ran_seconds=now - running if running is not None else 0.0,
    )
    return replace(training, phase=Phase.DONE, result=result)
