"""Undelivered messages: kept, reserved by a single sender, reminded of at the right time, for each block."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from plumbline.night.alerts import (
    AlertMessage,
    AlertState,
    Open,
    Outgoing,
    add_all,
    add_once,
    after_failure,
    after_success,
    claim,
    missed_message,
    update,
)
from plumbline.schema.alert_event import AlertEvent
from plumbline.schema.suite import Alert
from plumbline.schema.verdict import Finding, Outcome, PlatformResult, RoundVerdict

NOW = datetime(2026, 11, 20, 2, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
TEAM, PAGER = "slack-webhook/team", "pager/duty"
MESSAGE = AlertMessage("missed/x", "missed", "s/missed", "subject", "body")


def alert(*on: AlertEvent, block: str = TEAM, hours: float = 24) -> Alert:
    return Alert(on=on, block=block, reminder_hours=hours)


def verdict(number: int, outcome: Outcome = "drift", **platform: object) -> RoundVerdict:
    findings = (Finding(check="probe.loss", outcome=outcome, workload="bert"),)
    result = PlatformResult(verdict=outcome, findings=findings, workloads={"bert": outcome})
    return RoundVerdict(
        round=f"night-{number}", suite="s", verdict=outcome, platforms={"azure": result.replace(**platform)}
    )


def two_messages() -> AlertState:
    return add_once(AlertState(), MESSAGE, (alert("missed"), alert("missed", block=PAGER)), NOW)


def test_each_subscribed_block_gets_a_message_once() -> None:
    alerts = (alert("missed"), alert("missed", "drift"), alert("missed", block=PAGER), alert("drift", block="a/b"))
    state = add_once(AlertState(), MESSAGE, alerts, NOW)
    assert [item.block for item in state.pending] == [TEAM, PAGER]
    assert len({item.id for item in state.pending}) == 2
    first = state.pending[0]
    assert (first.event, first.about, first.subject, first.body) == ("missed", "s/missed", "subject", "body")
    assert (first.created, first.failures, first.sending_until) == (NOW, 0, None)
    assert add_once(state, replace(MESSAGE, id="missed/x"), alerts, LATER) == state
    assert add_once(after_success(state, first), MESSAGE, alerts, LATER) == after_success(state, first)


def test_every_missed_round_is_alerted_beside_the_messages_before() -> None:
    state = add_once(AlertState(), missed_message("s", NOW), (alert("missed"),), NOW)
    state = add_once(state, missed_message("s", NOW + timedelta(days=1)), (alert("missed"),), NOW)
    assert len(state.pending) == 2
    assert state.rounds == ("missed/2026-11-20T02:00:00+00:00", "missed/2026-11-21T02:00:00+00:00")


def test_a_message_is_reserved_by_one_sender_until_its_time_is_over() -> None:
    state = two_messages()
    wanted = state.pending[0]
    claimed = claim(state, wanted, NOW, LATER)
    assert [item.sending_until for item in claimed.pending] == [LATER, None]
    end = LATER + timedelta(minutes=5)
    assert claim(claimed, wanted, LATER - timedelta(seconds=1), end) == claimed
    assert [item.sending_until for item in claim(claimed, wanted, LATER, end).pending] == [end, None]
    assert claim(claimed, wanted, LATER + timedelta(seconds=1), end).pending[0].sending_until == end
    gone = after_success(claimed, wanted)
    assert claim(gone, wanted, end, end) == gone


def test_a_delivery_removes_its_message_of_its_block_and_no_other() -> None:
    state = two_messages()
    first, second = state.pending
    assert after_success(state, first).pending == (second,)
    assert after_success(state, second).pending == (first,)
    same_id = state.replace(pending=[first.model_dump(), first.replace(block=PAGER).model_dump()])
    assert [item.block for item in after_success(same_id, first).pending] == [PAGER]
    same_block = state.replace(pending=[first.model_dump(), first.replace(id="other").model_dump()])
    assert [item.id for item in after_success(same_block, first).pending] == ["other"]


@pytest.mark.parametrize(("is_late", "tries", "hours"), [(True, 3, 0.15), (False, 15, 48.35)])
def test_a_message_that_fails_waits_longer_each_time_and_ends(tries: int, hours: float, *, is_late: bool) -> None:
    state, now, sent = two_messages(), NOW, 0
    first, second = state.pending
    while state.pending[0].id == first.id:
        assert claim(state, first, now - timedelta(seconds=1), LATER) == state or not sent
        state = after_failure(state, state.pending[0], "x" * 501, now, is_late=is_late)
        sent += 1
        if state.pending[0].id == first.id:
            assert (state.pending[0].failures, state.pending[0].last_failure) == (sent, "x" * 500)
            now = state.pending[0].sending_until or now
    assert (sent, round((now - NOW).total_seconds() / 3600, 2)) == (tries, hours)
    assert state.pending == (second,)


def test_each_block_is_reminded_by_its_own_hours_to_the_second() -> None:
    alerts = (alert("drift", hours=24), alert("drift", block=PAGER, hours=48), alert("recovered", block="a/b"))
    state = update(AlertState(), verdict(1), alerts, NOW)
    assert [item.block for item in state.pending] == [TEAM, PAGER]
    assert [item.created for item in state.pending] == [NOW, NOW]

    def after(hours: float, number: int, state: AlertState) -> AlertState:
        return update(state.replace(pending=()), verdict(number), alerts, NOW + timedelta(hours=hours))

    state = after(23.99, 2, state)
    assert state.pending == ()
    state = after(24, 3, state)
    assert [item.block for item in state.pending] == [TEAM]
    state = after(47.9, 4, state)
    assert state.pending == ()
    state = after(48, 5, state)
    assert [item.block for item in state.pending] == [TEAM, PAGER]
    assert state.open["azure/bert/probe.loss"].since == NOW
    assert "round night-1" in state.pending[0].body


def test_a_reminder_may_be_due_never() -> None:
    alerts = (alert("drift", hours=1e300),)
    state = update(AlertState(), verdict(1), alerts, NOW)
    assert len(update(state, verdict(2), alerts, LATER).pending) == 1


def test_a_block_that_subscribes_later_hears_of_an_open_trouble() -> None:
    state = update(AlertState(), verdict(1), (alert("invalid"),), NOW)
    assert state.pending == ()
    assert set(state.open) == {"azure/bert/probe.loss"}
    state = update(state, verdict(2), (alert("drift"),), LATER)
    assert [item.block for item in state.pending] == [TEAM]


def test_a_drift_that_becomes_invalid_is_new() -> None:
    alerts = (alert("drift", "invalid"),)
    state = update(AlertState(), verdict(1), alerts, NOW)
    state = update(state, verdict(2, "invalid"), alerts, LATER)
    assert [item.event for item in state.pending] == ["drift", "invalid"]
    assert state.open["azure/bert/probe.loss"].since == LATER
    assert state.open["azure/bert/probe.loss"].since_round == "night-2"
    state = update(state, verdict(3), alerts, LATER)
    assert [item.event for item in state.pending] == ["drift", "invalid", "drift"]
    assert state.open["azure/bert/probe.loss"].since_round == "night-3"


def test_a_round_keeps_the_messages_before_and_the_due_times_of_the_watch() -> None:
    state = two_messages().replace(due=(LATER,))
    later = update(state, verdict(1), (alert("drift"),), LATER)
    assert later.pending[:2] == state.pending
    assert (len(later.pending), later.due) == (3, (LATER,))
    assert later.rounds == ("missed/x", "night-1")


def test_only_the_oldest_of_too_many_messages_are_dropped() -> None:
    state = two_messages()
    first = state.pending[0]
    many = state.replace(pending=[first.replace(id=str(number)).model_dump() for number in range(500)])
    full = update(many, verdict(1), (alert("drift"),), LATER)
    assert len(full.pending) == 500
    assert [full.pending[0].id, full.pending[-1].event] == ["1", "drift"]
    room = update(many.replace(pending=many.model_dump()["pending"][:499]), verdict(1), (alert("drift"),), LATER)
    assert [room.pending[0].id, len(room.pending)] == ["0", 500]


def test_each_of_a_days_failed_rounds_is_alerted_once() -> None:
    """The watch reads all of the last day again in each pass, whatever the schedule."""
    messages = [replace(MESSAGE, id=f"missed/{minute}") for minute in range(24 * 60)]
    state = AlertState()
    for _ in range(2):
        state = add_all(state, messages, (alert("missed"),), NOW).replace(pending=())
    assert add_all(state, messages, (alert("missed"),), LATER) == state


def opened(**events: AlertEvent) -> AlertState:
    entries = {key.replace("_", "/"): Open(event=event, since_round="n", since=NOW) for key, event in events.items()}
    return AlertState(open=entries)


def test_a_whole_platforms_recovery_covers_its_workloads_and_no_other_platform() -> None:
    state = opened(
        azure_bert_loss="drift", azure_unavailable="unavailable", gcp_bert_loss="drift", gcp_mlm_loss="drift"
    )
    passing = PlatformResult(verdict="pass", workloads={"bert": "pass", "mlm": "pass"})
    both = RoundVerdict(round="r", suite="s", verdict="pass", platforms={"gcp": passing, "azure": passing})
    after = update(state, both, (alert("recovered"),), NOW)
    assert [item.subject.removeprefix("[plumbline] s: ") for item in after.pending] == [
        "azure has recovered", "gcp has recovered",
    ]  # fmt: skip
    assert after.open == {}


def test_a_trouble_that_goes_on_hides_no_recovery() -> None:
    entry = Open(event="drift", since_round="n", since=NOW)
    state = AlertState(open={"azure/bert/probe.loss": entry, "azure/mlm/loss": entry})
    result = verdict(1, workloads={"bert": "drift", "mlm": "pass"})
    after = update(state, result, (alert("recovered"),), NOW)
    assert set(after.open) == {"azure/bert/probe.loss"}
    assert [item.subject for item in after.pending] == ["[plumbline] s: azure, mlm has recovered"]


def test_an_improvement_that_ends_is_no_recovery() -> None:
    after = update(opened(azure_improved="improved"), verdict(1, "pass"), (alert("recovered"),), NOW)
    assert (after.pending, after.open) == ((), {})
    beside = opened(azure_improved="improved", azure_loss="drift")
    assert len(update(beside, verdict(1, "pass"), (alert("recovered"),), NOW).pending) == 1


def test_an_absence_ends_with_a_record_even_without_a_verdict_and_says_so() -> None:
    alerts = (alert("recovered"),)
    for key, thin, is_open in (
        ("azure/unavailable", verdict(1, "inconclusive"), False),
        ("azure/unavailable", verdict(1, "inconclusive", unavailable="x", optional=True), True),
        ("azure/bert/unavailable", verdict(1, "inconclusive"), False),
        (
            "azure/bert/unavailable",
            verdict(1, "inconclusive", absent={"mlm": "x"}, unavailable="x", optional=True),
            False,
        ),
        ("azure/bert/unavailable", verdict(1, "inconclusive", absent={"bert": "x"}, optional=True), True),
        ("azure/bert/unavailable", RoundVerdict(round="r", suite="s", verdict="pass", platforms={}), True),
    ):
        entry = Open(event="unavailable", since_round="n", since=NOW)
        after = update(AlertState(open={key: entry}), thin, alerts, NOW)
        subjects = [item.subject.rpartition(": ")[2] for item in after.pending]
        assert (key in after.open, subjects) == (is_open, [] if is_open else ["azure is available again"]), (key, thin)


def test_unjudged_nights_stay_open_while_the_record_is_too_thin_for_a_verdict() -> None:
    state = opened(azure_unjudged="unjudged")
    assert update(state, verdict(1, "inconclusive"), (), NOW).open == state.open


def test_an_outgoing_message_of_an_earlier_release_is_read() -> None:
    old = {"id": "1", "block": TEAM, "event": "drift", "subject": "s", "body": "b", "created": NOW}
    message = Outgoing.model_validate(old)
    assert (message.failures, message.last_failure, message.sending_until) == (0, "", None)
