"""Change points: valid on noise, dated, quick; equivalence."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.history.simulated_nights import NOISES
from plumbline.judge.statistics.changepoints import changes
from plumbline.judge.statistics.distributions import rank_sum_chance, t_quantile
from plumbline.judge.statistics.equivalence import equivalence, mcnemar, runs_to_resolve


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))


@pytest.mark.parametrize("kind", sorted(set(NOISES) - {"weekdays"}))
def test_noise_alone_seldom_changes(kind: str) -> None:
    # Expected at the level of 1%: one series in a hundred.
    series = NOISES[kind](_generator(1, sorted(NOISES).index(kind)), (100, 120))
    assert sum(bool(changes(row)) for row in series) <= 4


@pytest.mark.parametrize("length", [30, 60])
@pytest.mark.parametrize("kind", ["ar-0.3", "ar-0.6"])
def test_autocorrelated_noise_seldom_changes(kind: str, length: int) -> None:
    # Expected at the level of 1%: two. Seven or more have a chance of 0.005.
    series = NOISES[kind](_generator(7, length), (200, length))
    assert sum(bool(changes(row)) for row in series) <= 6


@pytest.mark.parametrize(("length", "place", "size"), [(30, 22, 9.0), (30, 15, 9.0), (40, 30, 5.0), (60, 50, 5.0)])
def test_a_large_step_in_white_noise_is_not_taken_for_autocorrelation(length: int, place: int, size: float) -> None:
    missed = 0
    for seed in range(200):
        values = _generator(8, seed).normal(size=length)
        values[place:] += size
        result = changes(values)
        missed += len(result) != 1 or abs(result[0].index - place) > 2
    assert missed <= 2


def test_a_larger_step_is_no_less_certain() -> None:
    noise = _generator(10).normal(size=90)
    chances = [changes(noise + size * (np.arange(90) >= 60))[0].p_value for size in (3.0, 10.0, 50.0)]
    assert chances[0] >= chances[1] >= chances[2]
    assert chances[2] < 1e-4


def test_two_large_steps_of_a_short_series_are_both_found() -> None:
    found = 0
    for seed in range(100):
        values = _generator(9, seed).normal(size=60)
        values[20:40] += 6
        found += [abs(item.index - at) <= 1 for item, at in zip(changes(values), (20, 40), strict=False)] == [True] * 2
    assert found >= 95


@pytest.mark.parametrize("size", [2.0, 3.0])
def test_a_step_is_dated_within_two_nights(size: float) -> None:
    hits = 0
    for seed in range(50):
        values = _generator(2, seed).normal(size=100)
        values[60:] += size
        result = changes(values)
        hits += len(result) == 1 and abs(result[0].index - 60) <= 2
    assert hits >= 42


def test_ten_thousand_points_take_under_a_second_of_processor_time() -> None:
    values = _generator(3).normal(size=10_000)
    values[3000:] += 2
    values[6000:] -= 3
    started = time.process_time()
    result = changes(values)
    assert time.process_time() - started < 1.0
    assert [abs(item.index - at) <= 3 for item, at in zip(result, (3000, 6000), strict=True)] == [True, True]


def test_short_series_with_clear_changes_are_split() -> None:
    # As apache/otava's own tests label them.
    first = [1.02, 0.95, 0.99, 1.00, 1.12, 1.00, 1.01, 0.98, 1.01, 0.96]
    second = [0.50, 0.51, 0.48, 0.48, 0.55, 0.50, 0.49, 0.51, 0.50, 0.49]
    assert [change.index for change in changes(first + second)] == [10]
    levels = [0.3, 2.4, 1.5, -0.9, -0.5, 99.7, 98.3, 99.1, 149.0, 149.7, 149.5, 149.1, 148.8, 150.0]
    assert [change.index for change in changes(levels)] == [5, 8]


@settings(max_examples=150, deadline=None)
@example([0.0, 0.0, 0.0, 0.0, 0.0, 1.4224741397798626e-255])  # its square is 0
@given(st.lists(st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.just(1.0)), max_size=80))
def test_no_series_raises(values: list[float]) -> None:
    for change in changes(values):
        assert 0 < change.index < len(values)
        assert 0 <= change.p_value <= 1
    if len({value for value in values if math.isfinite(value)}) <= 1:
        assert changes(values) == ()


def test_a_creep_is_one_change_and_a_step_another() -> None:
    values = 100 + _generator(4).normal(size=300)
    values[100:] -= 6
    values[200:260] += np.linspace(0, 14, 60)
    values[260:] += 14
    result = changes(values)
    assert [item.shape for item in result] == ["step", "creep"]
    assert abs(result[0].index - 100) <= 2
    assert abs(result[1].index - 200) <= 12
    assert result[1].after == pytest.approx(108, abs=0.6)


def test_equivalence_takes_enough_runs_and_says_how_many() -> None:
    generator = _generator(6)
    few = equivalence(generator.normal(0.85, 0.014, 3).tolist(), generator.normal(0.85, 0.014, 3).tolist(), 0.01)
    assert few is not None
    assert few.outcome == "unresolved"
    many = equivalence(generator.normal(0.85, 0.014, 80).tolist(), generator.normal(0.85, 0.014, 80).tolist(), 0.01)
    assert many is not None
    assert many.outcome == "equivalent"
    lost = equivalence(generator.normal(0.85, 0.014, 20).tolist(), generator.normal(0.78, 0.014, 20).tolist(), 0.01)
    assert lost is not None
    assert lost.outcome == "different"
    assert equivalence([0.8, math.nan], [0.8, 0.8], 0.01) is None
    # The power that the formula promises, simulated.
    runs = runs_to_resolve(0.0137, 0.01)
    shown = [
        equivalence(generator.normal(0, 0.0137, runs).tolist(), generator.normal(0, 0.0137, runs).tolist(), 0.01)
        for _ in range(200)
    ]
    assert 0.82 <= np.mean([item is not None and item.outcome == "equivalent" for item in shown]) <= 0.97


def test_mcnemar_counts_the_rows_on_which_two_models_disagree() -> None:
    left, right = np.ones(1000, dtype=bool), np.ones(1000, dtype=bool)
    assert mcnemar(left, right).p_value == 1.0
    right[:30] = False
    left[40:50] = False
    result = mcnemar(left, right)
    assert (result.only_reference, result.only_candidate, result.difference) == (30, 10, -0.02)
    assert result.p_value == pytest.approx(0.00222, abs=1e-4)  # scipy.stats.binomtest(10, 40).pvalue


def test_quantiles_and_rank_sums_are_those_of_the_tables() -> None:
    assert t_quantile(0.001, 14) == pytest.approx(3.7874, abs=1e-3)
    assert t_quantile(0.025, 5) == pytest.approx(2.5706, abs=1e-3)
    assert rank_sum_chance(25, 5, 5) == pytest.approx(1 / 252)
    assert rank_sum_chance(0, 4, 6) == 1.0
    assert rank_sum_chance(21, 5, 5) == pytest.approx(0.0476, abs=1e-4)  # U = 4 of 5 and 5
