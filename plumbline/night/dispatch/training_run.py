"""State machine of one training, driven by Prefect, outbox and clock.

    seeking ──online──▶ waiting ──runs──▶ running ──ends──▶ settling ──▶ done
       │                   │                 │                 ▲  │
       └─start deadline    └─start deadline  └─run deadline,   │  └─ no record, infrastructure: seeking again
                             ▼                 lost            │
                           cancelling ─────────────────────────┘

Times are seconds of a monotonic clock: a wall clock that jumps moves no deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from plumbline.night.dispatch.states import (
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


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """Dispatch state of one job."""

    job: Job
    since: float
    phase: Phase = Phase.SEEKING
    attempt: int = 0
    taken_over: bool = False
    """Whether an earlier controller dispatched this attempt."""
    waited: float = 0.0
    """Observed seconds of waiting for a worker."""
    seen_at: float = 0.0
    running_since: float | None = None
    alive: str = ""
    alive_at: float = 0.0
    looked_at: float = 0.0
    phase_since: float = 0.0
    why: str = ""
    retryable: bool = False
    is_misconfigured: bool = False
    stopped: bool = False
    """Whether a person or a deadline ended the run: an infrastructure error in its record is a consequence."""
    recorded: Recorded | None = None
    """Record that appeared before the run's end: the run is about to end, and is not cancelled."""
    notes: tuple[str, ...] = ()
    result: Result | None = None


def begin(job: Job, now: float) -> TrainingRun:
    """Return a job's initial state."""
    return TrainingRun(job=job, since=now, phase_since=now)


def advance(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    """Return the next state, and the action for the loop."""
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
    problem = "the Prefect API did not answer" if view.online is None else "no worker came online"
    return _done(training, None, f"{problem} {_within(training.job)}"), Action.NONE


def _within(job: Job) -> str:
    return f"within {job.start_seconds:g} s (start_seconds)"


def _take_over(training: TrainingRun, attempt: int) -> TrainingRun:
    """Adopt an earlier controller's attempt, counting the attempts before as failed."""
    failed = range(training.attempt + 1, attempt + 1)
    notes = tuple(f"attempt {number} failed, as an earlier controller of this round saw" for number in failed)
    return replace(training, attempt=attempt, taken_over=True, notes=(*training.notes, *notes))


def _wait(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.refused:
        return _done(training, None, view.refused), Action.NONE
    if view.child is not None and view.child.state is ChildState.RUNNING:
        # Of a run that starts again after an eviction, all its starts share one deadline.
        since = now if training.running_since is None else training.running_since
        training = replace(
            training, phase=Phase.RUNNING, running_since=since, alive=view.child.alive, alive_at=now, looked_at=now
        )
        return training, Action.NONE
    if view.child is not None and view.child.state.final:
        return _ended(training, view.child, now)
    within = _within(training.job)
    if view.child is not None:
        # While the server hung, no worker could get the run.
        training = replace(
            training, waited=training.waited + min(now - training.seen_at, limits.gap_seconds), seen_at=now
        )
        if training.waited > training.job.start_seconds:
            # A claimed run was lost with its worker process.
            taken = view.child.state is ChildState.PENDING
            hindered = f": {view.child.message}" if view.child.message else ""
            why = (
                f"a worker claimed the run and did not start it {within}{hindered}"
                if taken
                else f"no worker started the run {within}{hindered}"
            )
            return _give_up(training, why, now, retryable=taken)
    elif now - training.since > training.job.start_seconds + limits.away_seconds:
        return _give_up(training, f"the Prefect API did not answer {within}, nor {limits.away_seconds:g} s later", now)
    return training, Action.NONE


def _run(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.child is not None:
        if view.child.state.final:
            return _ended(training, view.child, now)
        if view.child.state in (ChildState.SCHEDULED, ChildState.PENDING):
            return _scheduled_again(training, now)
        if view.child.alive != training.alive:
            training = replace(training, alive=view.child.alive, alive_at=now)
    elif view.recorded is None:
        # The server does not answer: silence is not a sign of a failed child.
        training = replace(training, alive_at=now)
    return _still_runs(training, view, now, limits)


def _still_runs(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    """Check the outbox and deadlines of a still running run."""
    if view.recorded is not None and view.recorded.kind in (RecordKind.COMPLETE, RecordKind.INFRASTRUCTURE):
        why = "Prefect has not seen the run's end"
        training = replace(training, phase=Phase.CANCELLING, phase_since=now, why=why, recorded=view.recorded)
        return training, Action.NONE
    if training.running_since is not None and now - training.running_since > training.job.run_seconds:
        return _give_up(training, f"the run took longer than {training.job.run_seconds:g} s (run_seconds)", now)
    if now - training.alive_at > limits.lost_seconds:
        why = f"the run reported no progress for {limits.lost_seconds:g} s"
        return _give_up(training, why, now, retryable=True)
    if now - training.looked_at >= limits.look_seconds:
        return replace(training, looked_at=now), Action.LOOK
    return training, Action.NONE


def _scheduled_again(training: TrainingRun, now: float) -> tuple[TrainingRun, Action]:
    """Wait for a run that Prefect rescheduled after pod eviction."""
    note = f"attempt {training.attempt + 1} lost its machine, and was scheduled again"
    notes = (*training.notes, note)
    return replace(training, phase=Phase.WAITING, waited=0.0, seen_at=now, since=now, notes=notes), Action.NONE


def _cancel(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    if view.child is not None and view.child.state.final:
        # The record was checked between its write and the run's end: no note needed.
        is_as_usual = training.recorded is not None and view.child.state is ChildState.COMPLETED
        why = "" if is_as_usual else training.why
        return replace(training, phase=Phase.SETTLING, phase_since=now, why=why), Action.LOOK
    if now - training.phase_since > limits.cancel_seconds:
        why = training.why if training.recorded else f"{training.why}, and did not end when cancelled"
        return replace(training, phase=Phase.SETTLING, phase_since=now, why=why), Action.FORCE
    return training, Action.NONE


def _settle(training: TrainingRun, view: View, now: float, limits: Limits) -> tuple[TrainingRun, Action]:
    # A record is never replaced: the one that was seen counts, though the outbox may be unreadable by now.
    recorded = view.recorded or training.recorded
    if recorded is None and now - training.phase_since <= limits.settle_seconds:
        return training, Action.LOOK
    if recorded is None:
        recorded = Recorded(RecordKind.ABSENT, f"the outbox could not be read within {limits.settle_seconds:g} s")
    if recorded.kind in (RecordKind.COMPLETE, RecordKind.FOREIGN):
        complete = recorded.kind is RecordKind.COMPLETE and training.why
        note = (f"the run's record is complete, though {training.why}",) if complete else ()
        return _done(replace(training, notes=training.notes + note), training.attempt, ""), Action.NONE
    infrastructure = recorded.kind is RecordKind.INFRASTRUCTURE
    why = recorded.why if infrastructure and not training.stopped else training.why or recorded.why
    why = why or "the run completed without a record"
    retryable = not training.stopped if infrastructure else training.retryable
    if retryable and training.attempt < training.job.retries:
        notes = (*training.notes, f"attempt {training.attempt + 1} failed: {why}")
        again = TrainingRun(job=training.job, since=now, phase_since=now, attempt=training.attempt + 1, notes=notes)
        return again, Action.NONE
    return _done(training, training.attempt if infrastructure else None, why), Action.NONE


def _ended(training: TrainingRun, child: ChildRun, now: float) -> tuple[TrainingRun, Action]:
    """Finish an ended run by its record, else by Prefect's state."""
    reasons = {
        ChildState.COMPLETED: "",
        ChildState.FAILED: f"the run failed: {child.message}",
        ChildState.CRASHED: f"the run crashed: {child.message}",
        ChildState.CANCELLED: "the run was cancelled",
    }
    stopped = child.state is ChildState.CANCELLED and not _inherited(training, child)
    training = replace(
        training, phase=Phase.SETTLING, phase_since=now, why=reasons[child.state], stopped=stopped,
        retryable=child.retryable and not stopped, is_misconfigured=child.is_misconfigured,
    )  # fmt: skip
    return training, Action.LOOK


def _inherited(training: TrainingRun, child: ChildRun) -> bool:
    """Return whether an earlier controller cancelled the run."""
    if child.by_person is not None:
        return not child.by_person
    # A run that no worker has started ends at once, and Prefect does not record who cancelled it.
    return training.taken_over and training.running_since is None


def _give_up(training: TrainingRun, why: str, now: float, *, retryable: bool = False) -> tuple[TrainingRun, Action]:
    training = replace(
        training, phase=Phase.CANCELLING, phase_since=now, why=why, retryable=retryable, stopped=not retryable
    )
    return training, Action.CANCEL


def _done(training: TrainingRun, attempt: int | None, why: str) -> TrainingRun:
    is_misconfigured = attempt is None and training.is_misconfigured
    result = Result(attempt, why, training.notes, training.attempt + 1, is_misconfigured)
    return replace(training, phase=Phase.DONE, result=result)
