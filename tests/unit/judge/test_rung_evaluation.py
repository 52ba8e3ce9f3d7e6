"""Rungs of the probe's evaluation: its rows and mode, its numbers, and its logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.evaluation import distance, evaluation, evaluation_numbers
from plumbline.records import LoadedRecord

from .conftest import STEPS
from .rung_records import Change, Content, both, side


def evaluated(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["evaluation"].update(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": 5}, {"num_rows": 5, "training_mode": True}, {"training_mode": True, "rows_sha256": "e" * 64},
        {"rows_sha256": "e" * 64}, {},
    ],
)  # fmt: skip
def test_an_evaluation_of_different_rows_or_in_a_different_mode_is_a_cause_of_its_own(changes: Content) -> None:
    found, other = both(evaluation, side(), side(evaluated(**changes)))
    assert (found is None) is (other is None) is (not changes)
    assert found is None or found.basis == "given"


def test_an_evaluation_that_a_record_lacks_is_not_compared() -> None:
    other = side(evaluated(num_rows=5, loss=0.1))
    for lost in (
        side(lambda c: c["evidence"]["probe"].update(evaluation=None)),
        side(lambda c: c["evidence"].update(probe=None)),
    ):
        assert both(evaluation, lost, other) == both(evaluation_numbers, lost, other) == (None, None)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"loss": 0.1}, "loss"), ({"loss": None}, "loss"), ({"accuracy": 0.4}, "accuracy"),
        ({"loss": 0.1, "accuracy": 0.1}, "loss"), ({"accuracy": None}, "accuracy"), ({"accuracy": 0.0}, "accuracy"),
        ({"accuracy": 0.5 * (1 + 4.7e-6)}, ""), ({"accuracy": 0.5 * (1 + 4.9e-6)}, "accuracy"), ({}, ""),
    ],
)  # fmt: skip
def test_equal_logits_give_equal_numbers(changes: Content, metric: str) -> None:
    found, _ = both(evaluation_numbers, side(), side(evaluated(**changes)))
    assert (found.at.at if found else "") == metric
    assert found is None or found.basis == "computed"


def test_logits_are_compared_by_their_relative_distance() -> None:
    def logits(change: Callable[[Any], Any], *, lost: bool = False) -> LoadedRecord:
        def edit(content: Content) -> None:
            arrays = content["arrays"]["evaluation"]
            arrays["logits"] = change(arrays["logits"])
            content["evidence"]["probe"]["evaluation"]["logits_sha256"] = "e" * 64
            if lost:
                del arrays["logits"]

        return side(edit)

    plain = side()
    far = logits(lambda values: values * 1.5)
    found, _ = both(evaluation_numbers, plain, far)
    assert found.findings[0].observed == pytest.approx(0.5)
    assert distance(plain, far) == pytest.approx(0.5)
    assert distance(far, plain) == pytest.approx(1 / 3)
    assert distance(logits(lambda values: values * 0), plain) == float("inf")
    assert distance(plain, logits(lambda values: values * 0)) == pytest.approx(1.0)
    for changed in (
        logits(lambda values: values[:, 1:]),
        logits(lambda values: values * np.nan),
        logits(lambda values: values, lost=True),
    ):
        assert distance(plain, changed) == distance(changed, plain) == float("inf")
        found, _ = both(evaluation_numbers, plain, changed)
        assert found.findings[0].observed is None
    # The limit grows with the steps before the evaluation.
    limit = 400 * 2.0**-23 * 2.0 ** (STEPS / 9)
    for share, differs in ((0.99, False), (1.01, True)):
        near = logits(lambda values, share=share: values.astype(np.float64) * (1 + share * limit))  # type: ignore[misc]
        assert (evaluation_numbers(Pair(plain, near)) is not None) is differs


@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize(
    ("recounted", "name"),
    [
        ((0.3, 0.5), ""), (None, ""), ((0.3 + 1e-7, 0.5), ""), ((0.31, 0.5), "loss"), ((0.3, 0.625), "accuracy"),
        ((0.3, None), "accuracy"), ((None, 0.5), "loss"),
    ],
)  # fmt: skip
def test_an_evaluation_follows_from_its_own_logits_on_every_machine(recounted: Any, name: str, of: int) -> None:
    """The logits of both sides differ by rounding, which excuses no other number."""

    numbers = {"loss": 0.3, "accuracy": 0.5}

    def counted(own: Any, logits: str) -> LoadedRecord:
        return side(
            evaluated(**numbers, logits_sha256=logits * 64), lambda c: c["evidence"]["probe"].update(recounted=own)
        )

    wrong, right = counted(recounted, "e"), counted((0.3, 0.5), "d")
    found = evaluation_numbers(Pair(wrong, right) if of == 0 else Pair(right, wrong))
    assert (found.at.at if found else "") == name
