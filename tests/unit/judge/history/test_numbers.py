"""Numbers that a sentence shows, by hand: a run's noise, and the resolvable difference."""

from __future__ import annotations

import math

import pytest

from plumbline.judge.history.decision import Decision, RerunTest
from plumbline.judge.history.reference import Reference
from plumbline.judge.statistics.equivalence import equivalence


def test_the_noise_of_a_run_counts_three_degrees_of_the_reruns_and_one_of_the_nights() -> None:
    rerun, reference = RerunTest(True, 5.0, 3.0, 0.2, spread=0.02), Reference(1.0, 0.06, 20, 0.0)
    decision = Decision("drift", "lasting", rerun=rerun, reference=reference, size=-0.5)
    assert decision.noise == pytest.approx(math.sqrt((3 * 0.02**2 + 0.06**2) / 4) / 0.5)


def test_the_difference_that_is_resolved_at_90_percent_is_the_whole_interval() -> None:
    """Its power leaves 5% on each side, as its level does."""
    found = equivalence([0.80, 0.81, 0.79, 0.80, 0.82, 0.78], [0.80, 0.79, 0.81, 0.80, 0.78, 0.82], 0.05)
    assert found is not None
    assert found.resolvable == pytest.approx(found.high - found.low)
