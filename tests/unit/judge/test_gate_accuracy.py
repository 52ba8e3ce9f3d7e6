"""Gate of the accuracy: gaps, equal curves, missing numbers, and answers row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge.gates.accuracy import learn, parting, shared_rows
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from tests.said import said

from .conftest import make_record
from .made_records import answered, learned, with_evidence


def rows(right: list[int], weights: str, **changes: Any) -> LoadedRecord:
    return answered(right, (0.7, 0.5 if weights == "a" else 0.6), weights, **changes)


def edited(made: LoadedRecord, **changes: Any) -> LoadedRecord:
    """Return the record with changed fields of its last evaluation."""
    curve = made.record.evidence.learn
    assert curve is not None
    last = curve.evaluations[-1].replace(**changes)
    return with_evidence(made, learn=curve.replace(evaluations=(*curve.evaluations[:-1], last)))


@pytest.mark.parametrize(("ours", "theirs", "gap"), [(0.85, 0.84, -0.01), (0.84, 0.85, 0.01), (0.5, 0.9, 0.4)])
def test_the_gap_is_the_candidates_less_the_references(ours: float, theirs: float, gap: float) -> None:
    found = learn(Pair(learned(ours, (0.7, 0.5), "a"), learned(theirs, (0.7, 0.6), "b")), Gates())
    assert found[0].observed == pytest.approx(gap)
    assert said(found[0].detail) == f"{theirs:.4f} instead of the reference's {ours:.4f} on 1024 rows"


@pytest.mark.parametrize(
    ("losses", "weights", "accuracy", "is_equal"),
    [
        ((0.7, 0.5), "a", 0.85, True),
        ((0.7, 0.4), "a", 0.85, False),
        ((0.7, 0.5), "b", 0.85, False),
        ((0.7, 0.5), "a", 0.86, False),
    ],
)
def test_equal_curves_are_those_with_equal_losses_weights_and_ends(
    losses: tuple[float, ...], weights: str, accuracy: float, is_equal: bool
) -> None:
    found = learn(Pair(learned(0.85, (0.7, 0.5), "a"), learned(accuracy, losses, weights)), Gates())
    assert (said(found[0].detail) == "the curves are bitwise equal") is is_equal
    assert found[0].outcome == "pass"


@pytest.mark.parametrize("side", [0, 1, 2])
def test_an_accuracy_that_is_missing_on_either_side_is_inconclusive(side: int) -> None:
    sides = [learned(0.85, (0.7, 0.5), "a"), learned(0.85, (0.7, 0.6), "a")]
    for place in (0, 1) if side == 2 else (side,):
        sides[place] = edited(sides[place], accuracy=None)
    bare = learned(0.85, (0.7, 0.6), "a", evaluations=[])
    for pair in (Pair(*sides), Pair(bare, sides[0]), Pair(sides[0], bare)):
        (finding,) = learn(pair, Gates())
        assert (finding.outcome, finding.observed) == ("inconclusive", None)
        assert said(finding.detail) == "no accuracy was measured"


def test_records_without_a_curve_have_no_finding_and_no_parting() -> None:
    bare, full = make_record(), learned(0.85, (0.7, 0.5), "a")
    for pair in (Pair(bare, full), Pair(full, bare), Pair(bare, bare)):
        assert learn(pair, Gates()) == []
        assert parting(pair) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "step"),
    [
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.6, 0.5, 0.4), None),
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.6, 0.5, 0.3), 3),
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.65, 0.5, 0.3), 1),
        ((0.7, 0.6, 0.5, 0.4), (0.8, 0.6, 0.5, 0.4), 0),
        ((0.7, 0.6, None, 0.4), (0.7, 0.6, None, 0.4), None),
        ((0.7, 0.6, None, 0.4), (0.7, 0.6, 0.5, 0.4), 2),
        ((0.7, 0.6), (0.7, 0.6, 0.5), None),
    ],
)
def test_curves_part_at_their_first_different_loss(ours: Any, theirs: Any, step: int | None) -> None:
    assert parting(Pair(learned(0.8, ours, "a"), learned(0.8, theirs, "b"))) == step


def test_answers_to_other_rows_or_of_one_side_are_not_compared() -> None:
    left, right = rows([1, 1, 0, 1, 0], "a"), rows([1, 0, 1, 0, 0], "b")
    found = shared_rows(Pair(left, right))
    assert found is not None
    assert (found.only_reference, found.only_candidate, found.num_rows) == (2, 1, 5)
    moved = {**right.arrays["answers"], "row_ids": np.arange(5) + 1}
    assert shared_rows(Pair(left, LoadedRecord(right.record, right.folder, right.arrays | {"answers": moved}))) is None
    for place in (0, 1):
        sides = [left, right]
        side = sides[place]
        arrays = {name: value for name, value in side.arrays.items() if name != "answers"}
        sides[place] = LoadedRecord(side.record, side.folder, arrays)
        assert shared_rows(Pair(*sides)) is None


@pytest.mark.parametrize(("errors", "outcome"), [(1.85, "drift"), (1.88, "inconclusive")])
def test_a_drift_of_accuracy_needs_the_same_rows_to_show_it(errors: float, outcome: str) -> None:
    """Of twelve rows, five only the reference has right: two-sided p is 1 in 16, as of 1.863 standard errors."""
    left, right = rows([1] * 12, "a"), rows([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1], "b")
    (finding,) = learn(Pair(left, right), Gates(accuracy_standard_errors=errors))
    assert finding.outcome == outcome
