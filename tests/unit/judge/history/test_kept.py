"""Decisions on made series, kept by their codes and whole numbers: each detector, reference, date, test and size.

The series come from quantiles in a fixed order, so that no version of a generator changes them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from plumbline.judge.history.allowed import Allowed, Margin, allowed_for
from plumbline.judge.history.decision import Answers, Call, Past, Software, advance
from plumbline.judge.history.detection import is_ruled_out, lasting
from plumbline.judge.history.engine import decide
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.statistics.distributions import t_quantile
from plumbline.judge.statistics.equivalence import equivalence, mcnemar, runs_to_resolve
from plumbline.judge.statistics.samples import autocorrelation
from plumbline.night.noise_floor import noise_floor, recommended_drop
from plumbline.schema.suite import Gates
from tests.kept_results import keep

ALLOWED = allowed_for(num_platforms=4, num_series=40)
CENTRE = 0.02


def steady(count: int, sd: float = 0.01, *, lean: float = 0.0, rho: float = 0.0) -> np.ndarray:
    """Return scores of unchanged nights: normal quantiles in a scattered order, skewed by `lean`, correlated by `rho`.

    The golden ratio's multiples scatter evenly, whatever the count.
    """
    shares = (np.arange(1, count + 1) * 0.6180339887498949) % 1.0
    scores = np.array([NormalDist().inv_cdf(min(max(share, 1e-4), 1 - 1e-4)) for share in shares])
    scores = scores + lean * (scores**2 - 1)
    for place in range(1, count):
        scores[place] = rho * scores[place - 1] + math.sqrt(1 - rho**2) * scores[place]
    return CENTRE + sd * scores


def step(count: int, at: int, size: float, **noise: float) -> np.ndarray:
    return steady(count, **noise) + size * (np.arange(count) >= at)


def creep(count: int, at: int, slope: float, **noise: float) -> np.ndarray:
    return steady(count, **noise) + slope * np.maximum(np.arange(count) - at, 0)


SERIES = {
    "four nights": steady(5),
    "five nights, then a large loss": step(6, 5, 0.3),
    "six nights, then a small loss": step(7, 6, 0.03),
    "twelve nights, then a loss": step(13, 12, 0.08),
    "thirteen nights, two of them lost": step(15, 13, 0.05),
    "twenty quiet nights": steady(20),
    "twenty nights, then a loss": step(21, 20, 0.04),
    "forty quiet nights": steady(40),
    "forty nights, then a loss": step(41, 40, 0.05),
    "forty nights, then three of a small loss": step(43, 40, 0.02),
    "a loss of eight nights": step(48, 40, 0.015),
    "a loss of twenty nights": step(70, 50, 0.01),
    "a creep of fifteen nights": creep(55, 40, 0.003),
    "a creep of forty nights": creep(90, 50, 0.001),
    "ninety nights, then a loss": step(91, 90, 0.045),
    "one hundred and fifty nights, then a creep": creep(150, 130, 0.002),
    "skewed nights, then a loss": step(41, 40, 0.06, lean=0.4),
    "correlated nights, then a loss": step(61, 60, 0.06, rho=0.5),
    "strongly correlated nights": steady(61, rho=0.8),
    "a gain that lasts": step(60, 40, -0.03),
    "a gain of eight nights": step(48, 40, -0.05),
    "a change of twelve nights": step(60, 48, 0.012),
    "a gain of one night": step(41, 40, -0.05),
    "constant nights": np.full(30, CENTRE),
    "constant nights, then the least loss": np.append(np.full(30, CENTRE), CENTRE + 0.006),
    "nights with one outlier before": steady(40) + 0.2 * (np.arange(40) == 20),
    "nights without a value": np.where(np.arange(41) % 4 == 1, np.nan, step(41, 40, 0.05)),
    "a huge value": np.append(steady(30), 1e300),
}
ANSWERS: dict[str, tuple[Answers, Software]] = {
    "repeated": (Answers(reruns=(0.0, 0.001, -0.001, 0.002)), "equal"),
    "repeated, no environment": (Answers(reruns=(0.0, 0.001, -0.001, 0.002)), "unavailable"),
    "half repeated": (Answers(reruns=(-0.02, -0.015, -0.025, -0.01)), "equal"),
    "lost reruns": (Answers(reruns=(math.nan,) * 4), "equal"),
    "one rerun": (Answers(reruns=(0.0,)), "equal"),
}


def runs(loss: float) -> np.ndarray:
    """Return [6 blocks, 2] runs of an A/B."""
    return loss + steady(12, sd=0.0008).reshape(6, 2)


def nights_before(values: np.ndarray) -> Past:
    return Past(values[:-1])


@pytest.mark.parametrize("name", SERIES)
def test_what_is_decided_without_experiments(name: str) -> None:
    values = SERIES[name]
    decision = keep(decide(nights_before(values), float(values[-1]), ALLOWED))
    assert decision.verdict != "drift"
    assert decision.needs in {"reruns", ""}


@pytest.mark.parametrize("answered", ANSWERS)
@pytest.mark.parametrize("name", [name for name in SERIES if "loss" in name or "creep" in name])
def test_what_is_decided_by_reruns(name: str, answered: str) -> None:
    values = SERIES[name]
    answers, software = ANSWERS[answered]
    assert answers.reruns is not None
    tonight = float(values[-1])
    here = replace(answers, reruns=tuple(tonight + offset for offset in answers.reruns))
    decision = keep(decide(nights_before(values), tonight, ALLOWED, here, software=software))
    assert decision.needs == ""
    keep(advance(nights_before(values), tonight, decision).level)


@pytest.mark.parametrize("loss", [0.0, 0.003, 0.008, 0.05])
@pytest.mark.parametrize("num_tested", [1, 8])
def test_what_is_decided_by_an_ab(loss: float, num_tested: int) -> None:
    values = SERIES["forty nights, then a loss"]
    tonight = float(values[-1])
    answers = Answers((tonight,) * 4, runs(loss), runs(0.0)[::-1], num_tested)
    decision = keep(decide(nights_before(values), tonight, ALLOWED, answers))
    assert decision.difference is not None
    keep(advance(nights_before(values), tonight, decision).untested)


@pytest.mark.parametrize("changes", [{"num_reruns": 0}, {"num_blocks": 0}, {"least_change": 0.2}])
def test_what_a_suite_with_less_is_told(changes: dict[str, float]) -> None:
    values = SERIES["a loss of twenty nights"]
    answers = Answers((float(values[-1]),) * 4)
    for given in (Answers(), answers):
        keep(
            decide(nights_before(values), float(values[-1]), replace(ALLOWED, **changes), given, software="can-differ")
        )


@pytest.mark.parametrize("tonight", [0.0, 0.01, 0.024, 0.05, 0.2])
def test_what_is_decided_against_an_anchor(tonight: float) -> None:
    anchor = Reference(CENTRE - 0.03, 0.008, 30, 0.1)
    past = replace(nights_before(SERIES["forty quiet nights"]), anchor=anchor)
    for answers in (Answers(), Answers((CENTRE + tonight,) * 4)):
        keep(decide(past, CENTRE + tonight, ALLOWED, answers, software="equal"))


def test_the_newest_five_nights_count_against_an_anchor() -> None:
    anchor = Reference(CENTRE, 0.004, 30, 0.0)
    moved = steady(44, sd=0.004) + 0.03 * (np.arange(44) >= 40)
    for values in (moved, moved[::-1]):  # a loss of the last four nights, then one of the first four
        keep(decide(replace(Past(values), anchor=anchor), CENTRE + 0.03, ALLOWED, software="equal"))


@pytest.mark.parametrize(("count", "more"), [(7, 5), (12, 5), (30, 3)])
def test_so_many_nights_show_a_loss_that_lasts(count: int, more: int) -> None:
    reference = reference_of(steady(count), floor=1e-3, is_whole=True)
    assert reference is not None
    here = np.append(steady(count), CENTRE + 0.1 + np.arange(more) ** 2 * 0.001)
    assert lasting(here, reference, 5e-4) > 0
    assert lasting(here[: count + more - 1], reference, 5e-4) == 0


@pytest.mark.parametrize("level", [0, 12, 41])
def test_a_loss_is_dated_among_all_nights_of_its_level(level: int) -> None:
    values = np.where(np.arange(41) % 5 == 2, np.nan, step(41, 36, 0.06))
    prior = reference_of(values[:30], floor=1e-3)
    past = Past(values, level=level, untested=level, prior=prior)
    decision = keep(decide(past, CENTRE + 0.06, ALLOWED, Answers((CENTRE + 0.06,) * 4), software="equal"))
    keep(advance(past, CENTRE + 0.06, decision).level)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 25])
def test_a_new_level_shares_the_spread_of_the_level_before_while_its_nights_are_few(count: int) -> None:
    prior = Reference(CENTRE, 0.05, 30, 0.2)
    found = keep(reference_of(steady(count, sd=0.002), floor=1e-3, prior=prior, is_whole=True))
    assert found is not None
    assert (found.spread == prior.spread) == (count < 10)
    assert (found.spread < 0.01) == (count >= 20)


def test_values_whose_squares_vanish_have_no_autocorrelation() -> None:
    assert autocorrelation(np.tile([1e-200, -1e-200], 15)) == 0.0


@pytest.mark.parametrize("tonight", [0.0, 0.02, 0.045, 0.06])
def test_what_becomes_of_an_open_call(tonight: float) -> None:
    values = step(48, 40, 0.05)
    before = reference_of(values[:40], floor=1e-3)
    assert before is not None
    past = Past(values, level=40, untested=40, calls=(Call(40, before, 0.05, 0),), prior=before)
    decision = keep(decide(past, CENTRE + tonight, ALLOWED))
    after = advance(past, CENTRE + tonight, decision)
    keep((after.level, after.untested, after.calls))


@pytest.mark.parametrize("size", [0.0, 0.01, 0.021, 0.1])
@pytest.mark.parametrize("margin", [Margin(0.02), Margin(0.02, is_of_loss=True)])
def test_what_counts_within_a_metrics_margin(margin: Margin, size: float) -> None:
    allowed = replace(ALLOWED, margin=margin)
    for centre in (-1.5, 0.0, 0.7):
        values = SERIES["constant nights"] - CENTRE + centre
        keep((margin.at(centre), decide(Past(values), centre + size, allowed)))


def _allowed(**changes: float) -> Allowed:
    numbers = {name: changes.pop(name, usual) for name, usual in (("num_platforms", 3), ("num_series", 24))}
    return allowed_for(**numbers, gates=Gates(**changes))  # type: ignore[arg-type]


def test_levels_of_a_suite_are_its_tolerated_alarms_by_nights_and_series() -> None:
    usual = _allowed(false_alarms_a_year=2.0, questions_a_year=50.0)
    assert usual.detection_chance == pytest.approx(50 / 2 / (365 * 24))
    assert usual.software_alpha == pytest.approx(0.8 * 2 / (365 * 3))
    assert usual.lasting_alpha == pytest.approx(0.2 * 2 / (365 * 24))


def test_no_level_is_above_its_maximum() -> None:
    loose = _allowed(num_platforms=0, num_series=0, false_alarms_a_year=1e9, questions_a_year=1e9)
    assert (loose.detection_chance, loose.software_alpha, loose.lasting_alpha) == (0.05, 0.01, 0.01)


RUNS = {
    "alike": (steady(20, 0.01), steady(15, 0.01)),
    "of other spreads and sizes": (steady(40, 0.02), steady(5, 0.003) + 0.004),
    "lost": (steady(20, 0.01), steady(20, 0.01) - 0.06),
    "gained": (steady(8, 0.01), steady(9, 0.02) + 0.08),
    "constant": (np.full(4, CENTRE), np.full(6, CENTRE + 0.005)),
    "two each": (steady(2, 0.01), steady(2, 0.01)),
    "with missing ones": (np.append(steady(6), np.nan), np.append(steady(7), np.inf)),
    "one alone": (steady(1), steady(9)),
}


@pytest.mark.parametrize("runs_", RUNS)
@pytest.mark.parametrize("margin", [0.01, 0.03])
def test_whether_two_sets_of_runs_are_equivalent(runs_: str, margin: float) -> None:
    left, right = RUNS[runs_]
    keep(equivalence(left.tolist(), right.tolist(), margin))
    keep(equivalence(left.tolist(), right.tolist(), margin, alpha=0.01))


def test_how_many_runs_resolve_a_margin() -> None:
    keep([runs_to_resolve(spread, 0.01) for spread in (0.0, 1e-9, 0.001, 0.003, 0.01, 0.1, 9.0)])
    assert (runs_to_resolve(1e-9, 0.01), runs_to_resolve(1e9, 0.01)) == (2, 100_000)


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (1, 0), (0, 7), (9, 9), (30, 12), (60, 20)])
def test_rows_that_one_model_alone_has_right(lost: int, gained: int) -> None:
    left, right = np.ones(200, bool), np.ones(200, bool)
    left[:gained], right[100 : 100 + lost] = False, False
    found = keep(mcnemar(left, right))
    keep((found.difference, found.resolvable, found.rows_needed(0.01)))


def test_models_without_a_row() -> None:
    found = keep(mcnemar(np.ones(0, bool), np.ones(0, bool)))
    keep((found.difference, found.resolvable, found.rows_needed(0.01)))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 6, 12, 13, 19, 20, 27, 28, 40, 67, 68, 100])
def test_what_so_many_nights_tell_of_their_noise(count: int) -> None:
    scores = creep(count, 0, 0.0005, rho=0.3, lean=0.2)
    keep(noise_floor((100 * np.exp(scores)).tolist()))
    reference = keep(reference_of(scores, floor=1e-3))
    if reference is not None:
        z = t_quantile(ALLOWED.detection_chance, round(reference.freedom))
        drop = 1 - math.exp(-z * math.sqrt(2) * reference.spread)
        assert recommended_drop(reference, ALLOWED) == pytest.approx(drop)
        keep(
            [
                is_ruled_out(0.05, CENTRE + np.full(5, score), reference)
                for score in np.arange(0.0, 0.06, 0.005).tolist()
            ]
        )
        keep(reference_of(scores[:3] + 0.1, floor=1e-3, prior=reference))


def test_noise_of_values_that_are_none() -> None:
    keep(noise_floor([math.nan, math.inf, -1.0, 0.0]))
    keep(noise_floor([math.nan, 100.0, 101.0, 99.0, -1.0]))
