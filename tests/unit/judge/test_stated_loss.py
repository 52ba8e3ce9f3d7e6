"""A loss that its own logits and labels do not give is a drift, whatever the other side has."""

from __future__ import annotations

import pytest

from plumbline.judge import compare
from tests.said import said

from .conftest import make_record, set_all, with_log


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "pass"), (1.01, "drift"), (1 + 1e-6, "pass"), (1 + 2e-5, "drift")]
)
def test_two_sides_whose_losses_are_wrong_alike_do_not_pass(factor: float, verdict: str) -> None:
    wrong = make_record(loss_factor=factor)
    judged = compare(wrong, make_record(loss_factor=factor))
    assert judged.verdict == verdict
    assert [cause.code for cause in judged.causes] == ["loss"] * (verdict == "drift")
    if verdict == "drift":
        assert (judged.first_divergence.stage, judged.first_divergence.step) == ("loss", 0)
        assert "is off its definition" in said(judged.causes[0].why)


def test_a_loss_that_differs_from_a_right_one_is_named_once() -> None:
    judged = compare(make_record(), make_record(loss_factor=1.01))
    assert [cause.code for cause in judged.causes] == ["loss"]
    assert [finding.check for finding in judged.findings if finding.outcome == "drift"] == ["probe.loss"]


@pytest.mark.parametrize(("loss", "verdict"), [(0.0, "pass"), (3.1e-8, "pass"), (1e-4, "drift")])
def test_a_loss_near_zero_is_beside_the_rounding_of_its_logits(loss: float, verdict: str) -> None:
    """A model that is sure of one label has a loss of log(1 + e^-d): fp32 rounds that sum to 1."""
    record = make_record()
    sure = with_log(record, lambda log: set_all(log, loss=loss, defined_loss=3e-8))
    assert compare(sure, sure).verdict == verdict
