"""Each trial that begins or ends is one line, with an estimate or with what its pairs measured."""

from __future__ import annotations

import math

import pytest

from plumbline.schema.suite import Gates
from plumbline.upgrade.answer import Trial, TrialResult
from plumbline.upgrade.campaign import TrialProgress, UpgradeOptions, duration
from plumbline.upgrade.gate import Parts, UpgradeGate
from tests.unit.upgrade.conftest import Machine, changes


def line(part="speed", outcome="same", log_ratios=()):
    said = []
    result = TrialResult(trial="x", outcome=outcome, log_ratios=log_ratios, seconds=22.3)
    TrialProgress(said.append, UpgradeOptions(trials=10, seconds=60.0)).add(Trial(name="x", part=part), result)
    (only,) = said
    return only


@pytest.mark.parametrize(
    ("shares", "shown"),
    [
        ((0.93, 0.93, 0.92, 0.936), "speed: 4 pairs, 6.4% to 8.0% slower, in 22 s"),
        ((0.99, 1.02), "speed: 2 pairs, 2.0% faster to 1.0% slower, in 22 s"),
        ((1.1,), "speed: 1 pair, 10.0% faster, in 22 s"),
    ],
)
def test_an_interim_look_at_speed_says_how_much_slower(shares, shown):
    assert shown in line(log_ratios=tuple(map(math.log, shares)))


@pytest.mark.parametrize(("part", "outcome"), [("numerics", "same"), ("numerics", "drift"), ("speed", "cannot-train")])
def test_other_trials_say_their_outcome(part, outcome):
    assert f"trial 1: {part}: {outcome} in 22 s" in line(part, outcome)


def test_pairs_before_a_failure_do_not_hide_it():
    assert "speed: lost in 22 s" in line(outcome="lost", log_ratios=(0.1,))


def test_a_line_stands_before_the_first_trial_and_an_estimate_after_the_reference():
    said = []

    class Slow(Machine):
        """Answers with the seconds of a training, and notes how much was said before."""

        def answer(self, trial):
            said.append(f"({trial.part} runs)")
            return super().answer(trial).replace(seconds=90.0)

    machine = Slow(ratios=lambda _, count: [0.001] * count)
    UpgradeGate(machine, Gates(), Parts(learn=False), say=said.append).judge(changes(8))
    environment, run, *_ = said
    assert (environment.partition(",")[0], run) == ("environment with p000 1.0 → 2.0", "(environment runs)")
    assert environment.endswith("begins")
    (estimate,) = (line for line in said if line.startswith("estimate: "))
    assert estimate == (
        "estimate: 90 s a training; the comparison takes about 12 min, "
        "a search for one culprit among 8 changes about 6 min more"
    )
    assert said.index(estimate) < said.index("(numerics runs)")
    assert any(line.startswith("numerics with") and line.endswith("begins, about 90 s") for line in said)
    assert any(line.startswith("speed with") and line.endswith("begins, about 9 min") for line in said)


@pytest.mark.parametrize(("seconds", "shown"), [(4.4, "4 s"), (119, "119 s"), (150, "2 min"), (9000, "2.5 h")])
def test_durations_are_rounded(seconds, shown):
    assert duration(seconds) == shown
