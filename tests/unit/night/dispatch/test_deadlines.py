"""Deadlines of a training on both sides, on a clock that does not begin at zero."""

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
    View,
    advance,
    begin,
)
from plumbline.night.dispatch.states import Phase
from plumbline.night.dispatch.training_run import TrainingRun

LIMITS = Limits(
    lost_seconds=60, look_seconds=10, cancel_seconds=30, settle_seconds=60, gap_seconds=10, away_seconds=120
)
BEGIN = 7000.0
ONLINE = View(online=True)
AWAY = View()


def child(state: ChildState, alive: str = "", *, retryable: bool = True, by_person: bool | None = None) -> View:
    return View(child=ChildRun(state, f"message of {state.value}", alive, retryable, by_person))


def recorded(kind: RecordKind | None, why: str = "") -> View:
    return View(recorded=None if kind is None else Recorded(kind, why))


SCHEDULED, PENDING, RUNNING = (
    child(state, "1") for state in (ChildState.SCHEDULED, ChildState.PENDING, ChildState.RUNNING)
)
COMPLETED, CRASHED = child(ChildState.COMPLETED), child(ChildState.CRASHED)
ABSENT = recorded(RecordKind.ABSENT)


class Play:
    """One training; `at` applies a view at a second since the begin, and returns the action."""

    def __init__(self, *, retries: int = 1) -> None:
        job = Job(key="r-aws-w", platform="aws", start_seconds=100, run_seconds=1000, retries=retries)
        self.run: TrainingRun = begin(job, BEGIN)

    def at(self, second: float, view: View) -> Action:
        self.run, action = advance(self.run, view, BEGIN + second, LIMITS)
        return action

    def all(self, *moves: tuple[float, View]) -> Play:
        for second, view in moves:
            self.at(second, view)
        return self

    @property
    def result(self) -> tuple[int | None, str, int]:
        """Return the result's attempt, reason and number of attempts."""
        assert self.run.result is not None
        return self.run.result.attempt, self.run.result.why, self.run.result.attempts


def test_a_pod_that_is_evicted_waits_for_a_machine_again_and_costs_no_attempt() -> None:
    play = Play().all((1, ONLINE), (3, SCHEDULED), (5, RUNNING), (50, RUNNING))
    assert play.at(55, SCHEDULED) is Action.NONE
    # A new node takes longer than a running training may be silent.
    assert [play.at(second, PENDING) for second in (65, 75, 85, 95, 105, 115, 125, 135)] == [Action.NONE] * 8
    assert play.at(140, child(ChildState.RUNNING, "2")) is Action.NONE
    assert play.run.phase is Phase.RUNNING
    play.all((200, COMPLETED), (201, recorded(RecordKind.COMPLETE)))
    assert play.result == (0, "", 1)
    assert play.run.notes == ("attempt 1 lost its machine, and was scheduled again",)
    # Without a new machine the start deadline holds, and all starts together have one run deadline.
    late = Play(retries=0).all((1, ONLINE), (5, RUNNING), (55, PENDING))
    assert [late.at(second, PENDING) for second in range(65, 166, 10)][-2:] == [Action.NONE, Action.CANCEL]
    long = Play(retries=0).all((1, ONLINE), (5, RUNNING), (900, PENDING), (990, child(ChildState.RUNNING, "2")))
    assert long.at(1006, child(ChildState.RUNNING, "3")) is Action.CANCEL


@pytest.mark.parametrize(
    ("view", "why"),
    [(View(online=False), "no worker came online"), (AWAY, "the Prefect API did not answer")],
)
def test_the_start_deadline_without_a_worker(view: View, why: str) -> None:
    play = Play()
    assert play.at(100, view) is Action.NONE
    assert play.run.result is None
    assert play.at(100.1, view) is Action.NONE
    assert play.result == (None, f"{why} within 100 s (start_seconds)", 1)
    assert play.at(101, ONLINE) is Action.NONE
    assert play.run.phase is Phase.DONE


def test_seconds_without_a_worker_count_as_waiting_and_a_hanging_server_by_its_gap_only() -> None:
    play = Play()
    assert play.at(40, ONLINE) is Action.START
    # 40 s until a worker came online, then at most 10 s for each answer.
    assert play.at(45, SCHEDULED) is Action.NONE
    assert play.at(95, SCHEDULED) is Action.NONE
    assert [play.at(second, SCHEDULED) for second in (105, 115, 125, 135)] == [Action.NONE] * 4
    assert play.at(140, SCHEDULED) is Action.NONE
    assert play.run.waited == 100
    assert play.at(140.5, SCHEDULED) is Action.CANCEL
    assert play.all((141, child(ChildState.CANCELLED)), (141, ABSENT)).result == (
        None, "no worker started the run within 100 s (start_seconds): message of scheduled", 1,
    )  # fmt: skip


def test_a_claimed_run_that_does_not_start_is_tried_again() -> None:
    play = Play().all((1, ONLINE), *((float(second), PENDING) for second in range(2, 101)))
    assert play.run.phase is Phase.WAITING
    assert play.at(100.5, PENDING) is Action.CANCEL
    play.all((101, child(ChildState.CANCELLED)), (101, ABSENT))
    assert (play.run.phase, play.run.attempt) == (Phase.SEEKING, 1)
    why = "a worker claimed the run and did not start it within 100 s (start_seconds): message of pending"
    assert play.run.notes == (f"attempt 1 failed: {why}",)


def test_the_deadline_of_a_server_that_does_not_answer_after_the_start() -> None:
    play = Play().all((90, ONLINE), (150, AWAY))
    assert play.at(220, AWAY) is Action.NONE
    assert play.at(220.5, AWAY) is Action.CANCEL
    assert play.at(250.5, AWAY) is Action.NONE
    assert play.at(250.6, AWAY) is Action.FORCE
    assert play.all((251, ABSENT)).result == (
        None,
        ("the Prefect API did not answer within 100 s (start_seconds), nor 120 s later, "
         "and did not end when cancelled"),
        1,
    )  # fmt: skip


def test_a_refused_training_ends_at_once() -> None:
    play = Play()
    assert play.at(1, ONLINE) is Action.START
    assert play.at(2, View(child=RUNNING.child, refused="not deployed")) is Action.NONE
    assert play.result == (None, "not deployed", 1)


def test_the_outbox_is_checked_every_ten_seconds_of_a_run() -> None:
    play = Play().all((1, ONLINE), (5, RUNNING))
    actions = {second: play.at(second, child(ChildState.RUNNING, str(second))) for second in (14.9, 15, 16, 24.9, 25)}
    assert [second for second, action in actions.items() if action is Action.LOOK] == [15, 25]


def test_the_run_deadline_counts_from_the_first_sight_of_the_run() -> None:
    play = Play().all((50, ONLINE), (60, RUNNING))
    for second in range(100, 1060, 30):
        play.at(second, child(ChildState.RUNNING, str(second)))
    assert play.at(1060, child(ChildState.RUNNING, "a")) is not Action.CANCEL
    assert play.at(1060.1, child(ChildState.RUNNING, "b")) is Action.CANCEL
    assert play.run.phase is Phase.CANCELLING


def test_silence_counts_from_the_last_progress() -> None:
    play = Play().all((1, ONLINE), (5, RUNNING), (40, child(ChildState.RUNNING, "2")))
    assert play.at(100, child(ChildState.RUNNING, "2")) is not Action.CANCEL
    assert play.at(100.1, child(ChildState.RUNNING, "2")) is Action.CANCEL


def test_silence_of_the_server_starts_the_childs_time_anew() -> None:
    play = Play().all((1, ONLINE), (5, RUNNING), (50, AWAY))
    assert play.at(110, RUNNING) is not Action.CANCEL
    assert play.at(110.1, RUNNING) is Action.CANCEL


def test_a_check_of_the_outbox_is_no_progress_of_the_child() -> None:
    absent = View(child=RUNNING.child, recorded=Recorded(RecordKind.ABSENT))
    play = Play().all((1, ONLINE), (5, RUNNING), (60, RUNNING), (60, absent))
    assert play.at(65, RUNNING) is Action.NONE
    assert play.at(65.1, RUNNING) is Action.CANCEL


@pytest.mark.parametrize("kind", [RecordKind.COMPLETE, RecordKind.INFRASTRUCTURE])
def test_a_record_of_a_running_child_is_taken_after_the_childs_end_or_the_deadline(kind: RecordKind) -> None:
    seen = View(child=RUNNING.child, recorded=Recorded(kind, "no answer"))
    play = Play(retries=0).all((1, ONLINE), (5, RUNNING), (15, RUNNING))
    assert play.at(16, seen) is Action.NONE
    assert play.run.phase is Phase.CANCELLING
    assert play.at(46, RUNNING) is Action.NONE
    assert play.at(46.1, RUNNING) is Action.FORCE
    assert play.at(47, recorded(kind, "no answer")) is Action.NONE
    assert play.run.result is not None
    if kind is RecordKind.COMPLETE:
        assert play.run.result.notes == ("the run's record is complete, though Prefect has not seen the run's end",)
        assert play.result == (0, "", 1)
    else:
        assert play.result == (0, "no answer", 1)


def test_a_run_that_completes_after_its_cancel_says_why_it_was_cancelled() -> None:
    play = Play().all((1, ONLINE), (5, RUNNING), (65.1, RUNNING), (66, COMPLETED))
    assert play.run.phase is Phase.SETTLING
    play.at(66, recorded(RecordKind.COMPLETE))
    assert play.run.result is not None
    assert play.run.result.notes == ("the run's record is complete, though the run reported no progress for 60 s",)


def test_a_run_that_failed_after_its_record_was_seen_keeps_the_note() -> None:
    seen = View(child=RUNNING.child, recorded=Recorded(RecordKind.COMPLETE))
    play = Play().all((1, ONLINE), (5, RUNNING), (15, seen), (16, CRASHED), (16, recorded(RecordKind.COMPLETE)))
    assert play.run.result is not None
    assert play.run.result.notes == ("the run's record is complete, though Prefect has not seen the run's end",)


def test_an_outbox_that_does_not_answer_is_tried_for_a_minute() -> None:
    play = Play(retries=0).all((1, ONLINE), (5, RUNNING))
    assert play.at(20, COMPLETED) is Action.LOOK
    assert play.at(50, recorded(None)) is Action.LOOK
    assert play.at(80, recorded(None)) is Action.LOOK
    assert play.at(80.1, recorded(None)) is Action.NONE
    assert play.result == (None, "the outbox could not be read within 60 s", 1)


@pytest.mark.parametrize(
    ("view", "why", "attempts"),
    [
        (COMPLETED, "the run completed without a record", 2),
        (child(ChildState.FAILED), "the run failed: message of failed", 2),
        (child(ChildState.FAILED, retryable=False), "the run failed: message of failed", 1),
        (CRASHED, "the run crashed: message of crashed", 2),
        (child(ChildState.CANCELLED), "the run was cancelled", 1),
        (child(ChildState.CANCELLED, by_person=True), "the run was cancelled", 1),
        (child(ChildState.CANCELLED, by_person=False), "the run was cancelled", 2),
    ],
)
@pytest.mark.parametrize("seen_running", [True, False])
def test_each_end_has_its_reason_and_its_attempts(view: View, why: str, attempts: int, seen_running: bool) -> None:
    play = Play()
    for second in (0, 1000):
        if play.run.result is None:
            play.all((second + 1, ONLINE), *([(second + 2.0, RUNNING)] if seen_running else []))
            assert play.at(second + 9, view) is Action.LOOK
            play.at(second + 9, ABSENT)
    assert play.result == (None, why, attempts)
    assert play.run.notes == (() if attempts == 1 else (f"attempt 1 failed: {why}",))


def test_a_second_attempt_has_all_its_time_again() -> None:
    play = Play().all((90, ONLINE), (91, RUNNING), (99, CRASHED), (200, ABSENT))
    assert (play.run.phase, play.run.attempt) == (Phase.SEEKING, 1)
    assert play.at(300, View(online=False)) is Action.NONE
    assert play.run.result is None
    assert play.at(300, ONLINE) is Action.START
    assert play.at(300, SCHEDULED) is Action.NONE
    assert play.at(301, SCHEDULED) is Action.CANCEL


def test_each_failed_attempt_leaves_its_note() -> None:
    play = Play(retries=3)
    for second in (0, 100, 200, 300):
        play.all((second + 1, ONLINE), (second + 2, RUNNING), (second + 3, CRASHED), (second + 3, ABSENT))
    assert play.run.notes == tuple(
        f"attempt {number} failed: the run crashed: message of crashed" for number in (1, 2, 3)
    )
    assert play.result == (None, "the run crashed: message of crashed", 4)


def test_an_earlier_controllers_attempt_is_adopted_without_a_worker_and_an_older_one_is_not() -> None:
    play = Play(retries=3)
    assert play.at(1, View(online=False, left=2)) is Action.START
    assert (play.run.attempt, play.run.taken_over) == (2, True)
    assert play.run.notes == tuple(
        f"attempt {number} failed, as an earlier controller of this round saw" for number in (1, 2)
    )
    play.all((2, CRASHED), (2, ABSENT))
    assert (play.run.attempt, play.run.taken_over) == (3, False)
    assert play.at(3, View(online=False, left=2)) is Action.NONE
    assert play.at(4, View(online=True, left=2)) is Action.START
    assert play.run.attempt == 3
    same = Play()
    assert same.at(1, View(left=0)) is Action.START
    assert (same.run.attempt, same.run.taken_over, same.run.notes) == (0, True, ())


def test_an_adopted_attempt_past_the_retries_is_the_last() -> None:
    """The suite's retries may have been lowered between two starts of a controller."""
    play = Play(retries=0).all((1, View(online=True, left=1)), (2, RUNNING), (3, CRASHED), (3, ABSENT))
    assert play.result == (None, "the run crashed: message of crashed", 2)


def test_a_stopped_training_with_an_infrastructure_record_is_not_tried_again() -> None:
    failed = recorded(RecordKind.INFRASTRUCTURE, "stopped on request")
    by_person = child(ChildState.CANCELLED, by_person=True)
    assert Play().all((1, ONLINE), (2, RUNNING), (9, by_person), (9, failed)).result == (0, "the run was cancelled", 1)
    inherited = Play().all((1, ONLINE), (2, RUNNING), (9, child(ChildState.CANCELLED, by_person=False)), (9, failed))
    assert inherited.run.notes == ("attempt 1 failed: stopped on request",)


def test_states_that_may_change_are_not_final() -> None:
    assert {state for state in ChildState if not state.final} == {
        ChildState.SCHEDULED, ChildState.PENDING, ChildState.RUNNING,
    }  # fmt: skip
