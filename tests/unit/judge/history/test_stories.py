"""Fixes, second losses, undone gains and new platforms, as the kept simulation has them; few series of each."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.history.scenarios import ROADS, STORIES, tell
from bench.history.simulate import ALLOWED
from plumbline.judge.history.decision import Answers, Call, Past, Question, advance
from plumbline.judge.history.engine import decide
from plumbline.judge.history.reference import Reference

SERIES = 7


def _median(name: str, road: str) -> float:
    told = sorted(number for number in (tell(name, road, trial, ALLOWED) for trial in range(SERIES)) if number >= 0)
    assert len(told) > SERIES / 2
    return told[len(told) // 2]


@pytest.mark.parametrize("road", ["A/B", "no A/B"])
@pytest.mark.parametrize("name", ["fix of 3% after 20 nights", "fix of 20% after 60 nights"])
def test_a_fixed_regression_is_red_for_six_nights_at_most(name: str, road: str) -> None:
    assert _median(name, road) <= 6


@pytest.mark.first(2)
@pytest.mark.parametrize("road", ["A/B", "no A/B"])
@pytest.mark.parametrize("name", ["3% then 8%", "5% then 55%"])
def test_a_second_loss_is_called_as_fast_as_a_first_one(name: str, road: str) -> None:
    assert _median(f"second loss, {name}", road) <= _median(f"first loss as large as of {name}", road) < math.inf


UNDONE = [(name, road) for name in STORIES if "undone" in name and "20 nights" in name for road in ROADS]


# Nights alone show an undone gain of 2 SD in two of three series (docs/MATH.md).
@pytest.mark.parametrize(("name", "road"), [pair for pair in UNDONE if "2%" not in pair[0] or pair[1] != "no A/B"])
def test_a_gain_that_is_undone_is_a_loss(name: str, road: str) -> None:
    assert sum(math.isfinite(tell(name, road, trial, ALLOWED)) for trial in range(SERIES)) >= SERIES - 1


def test_a_new_platform_that_loses_twenty_percent_is_called_within_five_nights_without_an_ab() -> None:
    assert _median("20% after 5 nights of a new platform", "no A/B") <= 5


def test_a_call_has_the_size_that_the_ab_measured() -> None:
    past = Past(np.random.default_rng(1).normal(0, 0.01, 60))
    runs = np.random.default_rng(2).normal(0, 0.003, (2, 12, 2))
    decision = decide(past, 0.2, ALLOWED, Answers((0.2,) * 4, runs[0] + 0.2, runs[1]))
    (call,) = advance(past, 0.2, decision).calls
    assert (call.is_software, call.size) == (True, pytest.approx(0.2, abs=0.005))


def test_an_unclear_ab_does_not_take_back_that_earlier_ones_cleared_the_software() -> None:
    past = Past(np.random.default_rng(1).normal(0, 0.01, 60))
    past = replace(past, question=Question(58, 58, 0.04, is_cleared=True))
    runs = np.random.default_rng(2).normal(0, 0.05, (2, 6, 2))
    decision = decide(past, 0.04, ALLOWED, Answers((0.04,) * 4, *runs))
    assert (decision.verdict, decision.reason, decision.is_cleared) == ("pass", "machine", True)
    assert decision.question is not None
    assert decision.question.is_cleared


def test_the_end_of_a_second_loss_leaves_the_first_one_open() -> None:
    levels = np.concatenate([np.zeros(60), np.full(30, 0.05), np.full(30, 0.15), np.full(9, 0.05)])
    values = levels + np.random.default_rng(3).normal(0, 0.01, len(levels))
    before = Reference(0.0, 0.01, 60, 0.0)
    calls = (Call(60, before, 0.05, 0), Call(90, replace(before, centre=0.05), 0.1, 60))
    past = Past(values[:120], level=90, untested=90, calls=calls, prior=before)
    for value in values[120:].tolist():
        decision = decide(past, value, ALLOWED, software="unavailable")
        past = advance(past, value, decision)
    assert (decision.verdict, decision.reason, len(past.calls), past.level) == ("drift", "open-call", 1, 60)
