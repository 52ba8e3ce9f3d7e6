"""State machine of one training: every possible end."""

from __future__ import annotations

import pytest

from plumbline.night.dispatch import (
    Action,
    ChildRun,
    ChildState,
    Job,
    Limits,
    Recorded,
    RecordKind,
    TrainingRun,
    View,
    advance,
    begin,
)
from plumbline.night.dispatch.states import Phase

LIMITS = Limits(lost_seconds=60, look_seconds=10, cancel_seconds=30, settle_seconds=60)
JOB = Job(key="r-aws-w", platform="aws", start_seconds=100, run_seconds=1000, retries=1)
ONCE = Job(key="r-aws-w", platform="aws", start_seconds=100, run_seconds=1000, retries=0)
ONLINE = View(online=True)


def child(
    state: ChildState, message: str = "", alive: str = "", *, retryable: bool = True, by_person: bool | None = None
) -> View:
    return View(child=ChildRun(state, message, alive, retryable, by_person))


def recorded(answer: bool | RecordKind | None, why: str = "") -> View:
    kinds = {True: RecordKind.COMPLETE, False: RecordKind.ABSENT}
    kind = kinds.get(answer, answer) if answer is not None else None
    return View(recorded=None if kind is None else Recorded(RecordKind(kind), why))


def play(*moves: tuple[float, View], job: Job = JOB) -> tuple[TrainingRun, list[Action]]:
    training, actions = begin(job, 0.0), []
    for now, view in moves:
        training, action = advance(training, view, now, LIMITS)
        actions.append(action)
    return training, actions


RUNNING = child(ChildState.RUNNING, alive="1")


def test_a_completed_training_with_its_record() -> None:
    training, actions = play((1, ONLINE), (2, RUNNING), (50, child(ChildState.COMPLETED)), (50, recorded(True)))
    assert actions == [Action.START, Action.NONE, Action.LOOK, Action.NONE]
    assert training.result is not None
    assert (training.result.attempt, training.result.why, training.result.notes) == (0, "", ())


def test_a_run_that_nobody_starts_is_cancelled_before_it_is_given_up() -> None:
    looks = [(float(now), child(ChildState.SCHEDULED)) for now in range(5, 102, 3)]
    training, actions = play((1, ONLINE), *looks, (102, child(ChildState.CANCELLED)), (102, recorded(False)))
    assert [action for action in actions if action is not Action.NONE] == [Action.START, Action.CANCEL, Action.LOOK]
    assert training.result is not None
    assert training.result.why == "no worker started the run within 100 s (start_seconds)"


def test_silence_is_loss_and_is_tried_again() -> None:
    training, actions = play((1, ONLINE), (2, RUNNING), (63, RUNNING), (94, RUNNING), (94, recorded(False)))
    assert actions[2:] == [Action.CANCEL, Action.FORCE, Action.NONE]
    assert (training.phase, training.attempt) == (Phase.SEEKING, 1)
    assert training.notes == (
        "attempt 1 failed: the run reported no progress for 60 s, and did not end when cancelled",
    )


def test_a_crash_is_tried_again_and_its_record_has_another_name() -> None:
    crash = (child(ChildState.CRASHED, "SIGKILL"), recorded(False))
    training, _ = play((1, ONLINE), (2, RUNNING), (9, crash[0]), (9, crash[1]))
    assert (training.phase, training.attempt) == (Phase.SEEKING, 1)
    training, action = advance(training, ONLINE, 10, LIMITS)
    assert action is Action.START
    for now, view in ((11, RUNNING), (20, child(ChildState.COMPLETED)), (20, recorded(True))):
        training, _ = advance(training, view, now, LIMITS)
    assert training.result is not None
    assert (training.result.attempt, training.result.attempts) == (1, 2)
    assert training.result.notes == ("attempt 1 failed: the run crashed: SIGKILL",)


def test_a_complete_record_of_a_crashed_run_is_used_and_said() -> None:
    training, _ = play((1, ONLINE), (2, RUNNING), (9, child(ChildState.CRASHED, "gone")), (9, recorded(True)))
    assert training.result is not None
    assert training.result.attempt == 0
    assert training.result.notes == ("the run's record is complete, though the run crashed: gone",)


@pytest.mark.parametrize(("by_person", "attempts"), [(True, 1), (False, 2), (None, 2)])
@pytest.mark.parametrize("seen_running", [True, False])
def test_what_was_cancelled_while_nobody_watched_is_tried_again_unless_a_person_did_it(
    by_person: bool | None, attempts: int, seen_running: bool
) -> None:
    """A controller that is started again may find a training cancelled, or on its way there."""
    left = View(online=True, left=0)
    looks = ((2.0, RUNNING),) if seen_running else ()
    training, _ = play((1, left), *looks, (9, child(ChildState.CANCELLED, by_person=by_person)), (9, recorded(False)))
    if by_person is None and seen_running:
        attempts = 1
    if attempts == 1:
        assert training.result is not None
        assert (training.result.why, training.result.attempts) == ("the run was cancelled", 1)
    else:
        assert (training.phase, training.attempt, training.result) == (Phase.SEEKING, 1, None)


def test_a_record_seen_a_moment_before_the_end_is_as_usual() -> None:
    seen = View(RUNNING.online, RUNNING.child, Recorded(RecordKind.COMPLETE))
    training, _ = play((1, ONLINE), (2, RUNNING), (12, RUNNING), (12, seen))
    assert training.phase is Phase.CANCELLING
    ended = View(RUNNING.online, ChildRun(ChildState.COMPLETED), Recorded(RecordKind.COMPLETE))
    training, action = advance(training, ended, 14, LIMITS)
    assert action is Action.LOOK
    training, _ = advance(training, ended, 14, LIMITS)
    assert training.result is not None
    assert (training.result.attempt, training.result.notes) == (0, ())


STORE_GONE = recorded(RecordKind.INFRASTRUCTURE, "s3://data: no answer within 32 s")


@pytest.mark.parametrize("state", [ChildState.FAILED, ChildState.CRASHED])
def test_a_record_of_an_infrastructure_failure_is_tried_again_within_retries(state: ChildState) -> None:
    """Whatever the flow's own state says: access refused ends it as `Invalid`, and yet nothing is known of training."""
    ends = (child(state, "s3://data: refused", retryable=state is ChildState.CRASHED), STORE_GONE)
    training, actions = play((1, ONLINE), (2, RUNNING), (40, ends[0]), (40, ends[1]))
    assert (training.phase, training.attempt, training.result) == (Phase.SEEKING, 1, None)
    assert training.notes == ("attempt 1 failed: s3://data: no answer within 32 s",)
    for now, view in ((41, ONLINE), (42, RUNNING), (80, ends[0]), (80, ends[1])):
        training, action = advance(training, view, now, LIMITS)
        actions.append(action)
    assert actions.count(Action.START) == 2
    assert training.result is not None
    # The last record is gathered and kept; it says why the platform is inconclusive.
    assert (training.result.attempt, training.result.why) == (1, "s3://data: no answer within 32 s")


def test_a_record_seen_while_the_training_ran_counts_though_the_outbox_is_then_unreadable() -> None:
    """The outbox's own store fails with the training, as when its cloud is away."""
    seen = View(child=RUNNING.child, recorded=STORE_GONE.recorded)
    moves = ((1.0, ONLINE), (2.0, RUNNING), (13.0, RUNNING), (13.0, seen))
    ends = ((15.0, child(ChildState.FAILED, retryable=False)), (15.0, recorded(None)), (76.0, recorded(None)))
    training, _ = play(*moves, *ends)
    assert (training.phase, training.attempt, training.result) == (Phase.SEEKING, 1, None)
    assert training.notes == ("attempt 1 failed: s3://data: no answer within 32 s",)
    training, _ = play(*moves, *ends, job=ONCE)
    assert training.result is not None
    assert (training.result.attempt, training.result.why) == (0, "s3://data: no answer within 32 s")


def test_a_complete_record_seen_while_the_training_ran_is_gathered_though_the_outbox_is_then_unreadable() -> None:
    seen = View(child=RUNNING.child, recorded=Recorded(RecordKind.COMPLETE))
    ends = ((15.0, child(ChildState.COMPLETED)), (15.0, recorded(None)), (76.0, recorded(None)))
    training, _ = play((1, ONLINE), (2, RUNNING), (13, RUNNING), (13, seen), *ends)
    assert training.result is not None
    assert (training.result.attempt, training.result.why) == (0, "")


def test_a_training_that_ran_too_long_is_not_tried_again_because_it_was_then_stopped() -> None:
    stopped = recorded(RecordKind.INFRASTRUCTURE, "stopped on request")
    moves = [
        (1.0, ONLINE),
        (2.0, RUNNING),
        *((float(now), child(ChildState.RUNNING, alive=str(now))) for now in range(30, 1030, 30)),
    ]
    training, _ = play(*moves, (1031, child(ChildState.CANCELLED)), (1031, stopped))
    assert training.result is not None
    assert (training.result.attempts, training.result.why) == (1, "the run took longer than 1000 s (run_seconds)")


def test_a_record_of_another_order_does_not_end_a_training_that_runs() -> None:
    foreign = recorded(RecordKind.FOREIGN)
    training, actions = play((1, ONLINE), (2, RUNNING), (13, RUNNING), (13, foreign), (14, RUNNING))
    assert training.phase is Phase.RUNNING
    assert Action.CANCEL not in actions
    for now, view in ((20, child(ChildState.FAILED, "others' bytes", retryable=False)), (20, foreign)):
        training, _ = advance(training, view, now, LIMITS)
    assert training.result is not None
    # Gathering looks at it, and says what it is.
    assert (training.result.attempt, training.result.notes) == (0, ())
