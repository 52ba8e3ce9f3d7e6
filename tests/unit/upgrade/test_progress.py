"""Each trial that ends is one line, which says of speed what its pairs measured."""

from __future__ import annotations

import math

import pytest

from plumbline.upgrade.progress import Progress
from plumbline.upgrade.trials import Trial, TrialResult


def line(part="speed", outcome="same", log_ratios=()):
    said = []
    result = TrialResult(trial="x", outcome=outcome, log_ratios=log_ratios, seconds=22.3)
    Progress(said.append, 10, 60.0).add(Trial(name="x", part=part), result)
    (only,) = said
    return only


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ((0.93, 0.93, 0.92, 0.936), "speed: 4 pairs, 7.1 % slower, in 22 s"),
        ((1.1,), "speed: 1 pair, 10.0 % faster, in 22 s"),
    ],
)
def test_an_interim_look_at_speed_says_how_much_slower(shares, shown):
    assert shown in line(log_ratios=tuple(map(math.log, shares)))


@pytest.mark.parametrize(("part", "outcome"), [("numerics", "same"), ("numerics", "drift"), ("speed", "cannot-train")])
def test_other_trials_say_their_outcome(part, outcome):
    assert f"trial 1: {part}: {outcome} in 22 s" in line(part, outcome)


def test_pairs_before_a_failure_do_not_hide_it():
    assert "speed: lost in 22 s" in line(outcome="lost", log_ratios=(0.1,))
