"""Whether a due round has started: both sides of every limit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from plumbline.night.alerts import AlertState, Planned, watch_on
from plumbline.night.alerts.state import last_due, ran_after
from plumbline.night.central.central_store import start_key, started_at

DUE = datetime(2026, 11, 20, 2, tzinfo=UTC)
SECOND = timedelta(seconds=1)
NIGHTS = [DUE - timedelta(days=2), DUE - timedelta(days=1), DUE]


def test_a_start_is_read_from_its_key_in_utc() -> None:
    local = datetime(2026, 11, 20, 3, 0, 7, tzinfo=timezone(timedelta(hours=1)))
    key = start_key("nightly", "20261120-020007-abc", local)
    assert key == "started/nightly/20261120T020007Z-20261120-020007-abc"
    assert started_at(key) == DUE + 7 * SECOND


@pytest.mark.parametrize("key", ["started/nightly/", "started/nightly/readme", "started/20261120T020007Z-a/b"])
def test_a_key_without_a_time_is_no_start(key: str) -> None:
    assert started_at(key) is None


def test_a_round_is_due_when_its_grace_period_is_over_and_not_before() -> None:
    assert last_due(NIGHTS, DUE + 900 * SECOND, 900) == DUE
    assert last_due(NIGHTS, DUE + 899 * SECOND, 900) == NIGHTS[1]
    assert last_due([], DUE, 900) is None


def test_the_latest_due_time_counts_in_any_order() -> None:
    assert last_due(NIGHTS[::-1], DUE + timedelta(hours=6), 900) == DUE


def test_a_start_up_to_a_minute_early_is_the_due_one() -> None:
    assert ran_after([DUE - 60 * SECOND], DUE)
    assert not ran_after([DUE - 61 * SECOND], DUE)
    assert ran_after([DUE - timedelta(days=1), DUE + timedelta(hours=5)], DUE)
    assert not ran_after([], DUE)


def test_the_watch_remembers_the_times_whose_grace_period_is_not_over() -> None:
    state = watch_on(AlertState(), Planned(times=tuple(NIGHTS)), 900, NIGHTS[1] + 899 * SECOND)
    assert (state.due, state.unplanned_since) == (tuple(NIGHTS[1:]), None)
    # Without an answer of the server, the known times stay.
    assert watch_on(state, None, 900, NIGHTS[1] + 900 * SECOND).due == (DUE,)
    assert watch_on(state, Planned(active=False, times=tuple(NIGHTS)), 900, DUE).due == ()


def test_the_watch_remembers_since_when_an_active_schedule_has_no_next_round() -> None:
    first = watch_on(AlertState(), Planned(), 900, DUE)
    assert first.unplanned_since == DUE
    assert watch_on(first, Planned(times=(DUE,)), 900, DUE + SECOND).unplanned_since == DUE
    assert watch_on(first, None, 900, DUE + SECOND).unplanned_since == DUE
    for planned in (Planned(times=(DUE + 2 * SECOND,)), Planned(active=False)):
        assert watch_on(first, planned, 900, DUE + SECOND).unplanned_since is None
