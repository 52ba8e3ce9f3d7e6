"""CUSUM, change points and noise floors find what is there, and are quiet where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from plumbline.judge.changepoint import changes
from plumbline.judge.cusum import creep, threshold
from plumbline.judge.history import nights, trend
from plumbline.judge.noise import noise_floor, recommended_drop
from plumbline.schema.verdict import RoundVerdict


def _series(seed: int, count: int = 60) -> np.ndarray:
    return 100 + np.random.default_rng(seed).normal(0, 1, count)


def test_a_step_is_found_where_it_happened() -> None:
    values = _series(1)
    values[25:] -= 5
    (found,) = changes(values.tolist())
    assert abs(found.index - 25) <= 1
    assert found.before - found.after == pytest.approx(5, abs=1)


def test_two_steps_are_both_found_and_the_answer_is_always_the_same() -> None:
    values = _series(2, 90)
    values[30:60] += 6
    first = changes(values.tolist())
    assert [abs(one.index - at) <= 1 for one, at in zip(first, (30, 60), strict=True)] == [True, True]
    assert changes(values.tolist()) == first


def test_noise_alone_seldom_changes() -> None:
    flagged = sum(bool(changes(_series(seed, 40).tolist())) for seed in range(20))
    assert flagged <= 2


def test_short_constant_or_broken_series_say_nothing() -> None:
    assert changes([1.0] * 40) == ()
    assert changes([1.0, 2.0, 3.0]) == ()
    assert changes([*_series(1).tolist(), float("nan")]) == ()
    assert creep([1.0] * 40) is None
    assert creep([1.0, float("nan")] * 20) is None


def test_a_creep_that_no_night_shows_is_summed_up() -> None:
    values = _series(3, 40)
    values[10:] -= np.linspace(0, 3, 30)
    found = creep(values.tolist())
    assert found is not None
    assert found.direction == -1
    assert found.since >= 10


def test_no_creep_in_steady_nights() -> None:
    alarms = sum(creep(_series(seed, 60).tolist(), calibration=30, rho=0.0) is not None for seed in range(100, 140))
    assert alarms <= 3


def test_resembling_nights_need_a_higher_sum() -> None:
    assert threshold(0.0) == pytest.approx(3.9)
    assert threshold(-0.5) == pytest.approx(3.9)
    assert threshold(0.15) > threshold(0.0)


def test_a_noise_floor_needs_three_runs_and_finite_ones() -> None:
    assert noise_floor([]).runs == 0
    assert noise_floor([100.0, 101.0]).relative_sd is None
    floor = noise_floor([99.0, 100.0, 101.0, float("nan")])
    assert floor.runs == 3
    assert floor.relative_sd == pytest.approx(0.01)


def test_rarer_alarms_and_more_platforms_ask_for_a_wider_limit() -> None:
    floor = noise_floor((100 + np.random.default_rng(1).normal(0, 1, 30)).tolist())
    limits = [
        recommended_drop(floor, platforms=2, false_alarms_a_year=1),
        recommended_drop(floor, platforms=20, false_alarms_a_year=1),
        recommended_drop(floor, platforms=2, false_alarms_a_year=50),
    ]
    assert limits[1] > limits[0] > limits[2] > 0.005  # type: ignore[operator]
    assert recommended_drop(noise_floor([1.0]), platforms=1, false_alarms_a_year=1) is None


def test_a_trend_names_the_round() -> None:
    values = _series(4)
    values[40:] *= 0.9
    rounds = [
        RoundVerdict(
            round=f"r{night:03d}",
            verdict="pass",
            platforms={"aws": {"verdict": "pass", "samples_per_second": float(value)}},
        )
        for night, value in enumerate(values)
    ]
    found = trend(nights(rounds, "aws"))
    assert any("since r040" in line or "since r041" in line for line in found.changes)
    assert nights(rounds, "azure") == ()
