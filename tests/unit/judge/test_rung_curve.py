"""Rungs of the learning curve and of its traces: the first logged difference, and what lies between two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.learning import evaluating, first_logged_difference, learning
from plumbline.records import LoadedRecord
from tests.kept_results import keep

from .rung_records import END, LEARN, Content, both, code, log, masked, side, why, with_learn

# The learning curve.


def curves(**changes: Any) -> tuple[LoadedRecord, LoadedRecord]:
    return side(with_learn()), side(with_learn(**changes))


def lost_at(*steps: int) -> list[float]:
    return [loss + 1 if step in steps else loss for step, loss in enumerate(LEARN["losses"])]


RATES = LEARN["learning_rates"]
CURVES: dict[str, tuple[Content, str]] = {
    "weights alone": ({"weights_sha256": "f" * 64}, "all losses are equal, the final weights are not"),
    "an evaluation alone": (
        {"evaluations": [END]}, "all losses and the final weights are equal, the evaluations are not"
    ),
    "a loss": (
        {"losses": lost_at(3, 5)},
        "the curves separate at step 3, with equal batches and learning rates",
    ),
    "dropout": ({"losses": lost_at(3), "dropout": [0.3]}, "dropout is 0.3 instead of 0.1, 0.25"),
    "no dropout": ({"losses": lost_at(3), "dropout": []}, "dropout is 0 instead of 0.1, 0.25"),
    "an unknown dropout": ({"losses": lost_at(3), "dropout": None}, "the curves separate at step 3"),
    "the first weights": ({"losses": lost_at(3), "start_sha256": "f" * 64}, "the learning curve starts from different"),
    "unknown first weights": ({"losses": lost_at(3), "start_sha256": None}, "the curves separate at step 3"),
    "rows": (
        {"losses": lost_at(3), "batches": log("a", 3), "rows": log("b", 3)},
        "step 3 of the learning curve received different rows",
    ),
    "labels": ({"losses": lost_at(3), "batches": log("a", 3), "labels": log("c", 3)}, "rows with different labels"),
    "ids": ({"losses": lost_at(3), "batches": log("a", 2)}, "step 2 of the learning curve received the same rows as"),
    "batches without rows": (
        {"losses": lost_at(3), "batches": log("a", 3), "rows": log("b")[:3]},
        "step 3 of the learning curve received different rows or ids",
    ),
    "batches with few labels": (
        {"losses": lost_at(3), "batches": log("a", 3), "labels": log("b")[:4]}, "the same rows with different labels"
    ),
    "a batch after the loss": ({"losses": lost_at(3), "batches": log("a", 4)}, "the curves separate at step 3"),
    "a batch of equal losses": ({"weights_sha256": "f" * 64, "batches": log("a", 5)}, "step 5 of the learning curve"),
    "a rate": (
        {"losses": lost_at(4), "learning_rates": [*RATES[:3], 9.0, *RATES[4:]]},
        "step 3 was taken with a learning rate of 9.0 instead of 0.0013",
    ),
    "a rate after the loss": (
        {"losses": lost_at(3), "learning_rates": [*RATES[:4], 9.0, 9.0]}, "the curves separate at step 3"
    ),
    "a rate of equal losses": ({"weights_sha256": "f" * 64, "learning_rates": [*RATES[:5], 9.0]}, "step 5 was taken"),
    "a rate at a resume": (
        {"losses": lost_at(4), "learning_rates": [*RATES[:3], 9.0, *RATES[4:]], "resumed_at": [2, 3]},
        "a learning rate of 9.0 instead of 0.0013, at a resume at step 3",
    ),
    "a resume before": (
        {"losses": lost_at(4), "resumed_at": [1, 3, 5]}, "the curves separate at step 4, after a resume at step 3"
    ),
    "a resume at the step": ({"losses": lost_at(4), "resumed_at": [4]}, "after a resume at step 4"),
    "a resume after": ({"losses": lost_at(4), "resumed_at": [5]}, "with equal batches and learning rates"),
}  # fmt: skip


@pytest.mark.parametrize("case", CURVES)
def test_a_curve_names_the_first_logged_difference(case: str) -> None:
    changes, text = CURVES[case]
    left, right = curves(**changes)
    found, other = both(learning, left, right)
    assert text in why(found)
    assert other is not None
    sides = [each.record.evidence.learn for each in (left, right)]
    keep(first_logged_difference(*sides))  # type: ignore[arg-type]
    keep(first_logged_difference(*sides[::-1]))  # type: ignore[arg-type]


def test_hidden_tokens_of_a_curve_are_named_only_by_their_rows() -> None:
    left, right = side(masked, with_learn()), side(masked, with_learn(batches=log("a", 3), losses=lost_at(3)))
    found, _ = both(learning, left, right)
    assert (code(found), "different ids or masks" in why(found)) == ("unattributed", True)


def test_equal_and_unfinished_curves_have_no_mismatch() -> None:
    assert both(learning, *curves()) == (None, None)
    assert both(learning, *curves(weights_sha256=None, losses=lost_at(3))) == (None, None)
    assert both(learning, side(), curves()[1]) == (None, None)
    assert both(evaluating, side(), curves()[1]) == (None, None)
    logs = [each.record.evidence.learn for each in curves()]
    assert first_logged_difference(*logs) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "losses", "text"),
    [
        ({"training_mode": True}, lost_at(), "the evaluation runs in training mode"),
        ({"num_rows": 5}, lost_at(), "different rows are evaluated"),
        ({"rows_sha256": "f" * 64}, lost_at(1), "different rows are evaluated"),
        ({"loss": 0.1}, lost_at(3), "the evaluation after step 2 differs, the loss of the next step is equal"),
        ({"loss": 0.1}, lost_at(2), ""),
        ({"loss": 0.1}, lost_at(1), ""),
        ({"loss": 0.1}, lost_at(), ""),
        ({"step": 3, "training_mode": True}, lost_at(4), ""),
        ({}, lost_at(4), ""),
    ],
)
def test_an_evaluation_of_a_curve_differs_by_itself_or_follows_the_training(
    first: Content, losses: list[float], text: str
) -> None:
    for place in (0, 1):
        evaluations = [END | {"step": 2}, END]
        evaluations[place] = evaluations[place] | first
        found, _ = both(evaluating, *curves(losses=losses, evaluations=evaluations))
        if place == 0:
            assert (why(found) if found else "") == text


def test_weights_that_part_before_an_equal_loss_explain_the_evaluation() -> None:
    """In bf16 an update that is slightly off shows in an evaluation before it shows in a loss."""
    pair = Pair(*curves(losses=lost_at(3), evaluations=[END | {"step": 2, "loss": 0.1}, END]))
    apart = learning(pair)
    assert apart is not None
    assert code(evaluating(pair, apart)) == "evaluation"
    assert evaluating(pair, replace(apart, at=apart.at.replace(step=0))) is None


def test_labels_that_only_an_evaluation_was_given_are_named_where_all_else_is_equal() -> None:
    given = {"evaluations": [END], "evaluated": [["a" * 16, "a" * 16]]}
    fed = {"evaluations": [END | {"loss": 0.1}], "evaluated": [["b" * 16, "a" * 16]]}
    found, _ = both(learning, side(with_learn(**given)), side(with_learn(**fed)))
    assert code(found) == "data.labels"
