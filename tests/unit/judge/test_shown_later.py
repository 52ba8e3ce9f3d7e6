"""A cause that a record shows itself names the place of an earlier first bit, and never moves behind its own step."""

from __future__ import annotations

import pytest

from plumbline.judge.mismatches import Suspicion, differs
from plumbline.judge.walk import with_first
from plumbline.schema.verdict import Divergence


@pytest.mark.parametrize(("shown_at", "first_at", "step"), [(0, 6, 0), (7, 6, 6)])
def test_a_shown_cause_moves_to_an_earlier_step_alone(shown_at: int, first_at: int, step: int) -> None:
    own = Divergence(stage="forward", step=shown_at, at="norm")
    shown = differs(own, "captured.forward", "x", Suspicion("operator", "formula", shown=True))
    guess = Suspicion("operator", "output")
    first = differs(Divergence(stage="forward", step=first_at, at="logits"), "probe.bits", "x", guess, basis="computed")
    found = with_first([shown], first)[0]
    assert (found.at.step, found.at.at) == (step, "norm")
