"""Rungs of the learning curve and of its traces: the first logged difference, and what lies between two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair, first_step_apart
from plumbline.judge.walk import evaluated, logged
from plumbline.records import LoadedRecord

from .rung_records import BATCHES, END, LEARN, STEPS, Content, both, code, log, masked, side, why, with_learn

# The learning curve.


def curves(**changes: Any) -> tuple[LoadedRecord, LoadedRecord]:
    return side(with_learn()), side(with_learn(**changes))


def lost_at(*steps: int) -> list[float]:
    return [loss + 1 if step in steps else loss for step, loss in enumerate(LEARN["losses"])]


def weighed(step: int) -> list[list[Any]]:
    """Return the checksums of the weights, with other ones after `step` steps."""
    return [[done, "f" * 16 if done == step else mark] for done, mark in LEARN["weights"]]


def ids(step: int) -> dict[str, list[str]]:
    """Return the checksums of batches with other ids at a step."""
    return BATCHES | {"input_ids": log("a", step)}


RATES = LEARN["learning_rates"]
CURVES: dict[str, tuple[Content, str]] = {
    "weights alone": ({"weights": weighed(STEPS)}, "the weights after 6 steps are not"),
    "a loss": ({"losses": lost_at(3, 5)}, "the losses separate at step 3, with equal batches and learning rates"),
    "the first loss": ({"losses": lost_at(0)}, "batches and weights of step 0 are equal, its loss is not"),
    "dropout": ({"losses": lost_at(3), "dropout": [0.3]}, "dropout is 0.3 instead of 0.1, 0.25"),
    "no dropout": ({"losses": lost_at(3), "dropout": []}, "dropout is 0 instead of 0.1, 0.25"),
    "an unknown dropout": ({"losses": lost_at(3), "dropout": None}, "the losses separate at step 3"),
    "the first weights": ({"losses": lost_at(3), "weights": weighed(0)}, "learn starts from different weights"),
    "unknown first weights": ({"losses": lost_at(3), "weights": [[STEPS, "a" * 16]]}, "the losses separate at step 3"),
    "rows": ({"losses": lost_at(3), "batches": BATCHES | {"row_ids": log("b", 3)}}, "a batch that differ: row_ids"),
    "labels": ({"losses": lost_at(3), "batches": BATCHES | {"labels": log("c", 3)}}, "a batch that differ: labels"),
    "ids": ({"losses": lost_at(3), "batches": ids(2)}, "fields of a batch that differ: input_ids"),
    "a batch after the loss": ({"losses": lost_at(3), "batches": ids(4)}, "the losses separate at step 3"),
    "a batch of equal losses": ({"weights": weighed(STEPS), "batches": ids(5)}, "a batch that differ: input_ids"),
    "a rate": (
        {"losses": lost_at(4), "learning_rates": [*RATES[:3], 9.0, *RATES[4:]]},
        "step 3 was taken with a learning rate of 9.0 instead of 0.0013",
    ),
    "a rate after the loss": (
        {"losses": lost_at(3), "learning_rates": [*RATES[:4], 9.0, 9.0]}, "the losses separate at step 3"
    ),
    "a rate of equal losses": ({"weights": weighed(STEPS), "learning_rates": [*RATES[:5], 9.0]}, "step 5 was taken"),
    "a rate at a resume": (
        {"losses": lost_at(4), "learning_rates": [*RATES[:3], 9.0, *RATES[4:]], "resumed_at": [2, 3]},
        "a learning rate of 9.0 instead of 0.0013, at a resume at step 3",
    ),
    "a resume before": (
        {"losses": lost_at(4), "resumed_at": [1, 3, 5]}, "the losses separate at step 4, after a resume at step 3"
    ),
    "a resume at the step": ({"losses": lost_at(4), "resumed_at": [4]}, "after a resume at step 4"),
    "a resume after": ({"losses": lost_at(4), "resumed_at": [5]}, "with equal batches and learning rates"),
}  # fmt: skip


def of_curve(pair: Pair) -> Mismatch | None:
    return logged(pair, "learn")


def evaluation_of(pair: Pair) -> Mismatch | None:
    return evaluated(pair, logged(pair, "learn"))


@pytest.mark.parametrize("case", CURVES)
def test_a_curve_names_the_first_step_apart(case: str) -> None:
    changes, text = CURVES[case]
    left, right = curves(**changes)
    found, other = both(of_curve, left, right)
    assert text in why(found)
    assert other is not None
    sides = [each.record.evidence.learn for each in (left, right)]
    steps = [first_step_apart(*logs) for logs in (sides, sides[::-1])]  # type: ignore[arg-type]
    assert steps[0] == steps[1]
    assert (steps[0] is None) is (case == "weights alone")


def test_other_hidden_tokens_of_a_curve_are_other_draws() -> None:
    drawn = BATCHES | {"input_ids": log("a", 3), "labels": log("c", 3)}
    left, right = side(masked, with_learn()), side(masked, with_learn(batches=drawn, losses=lost_at(3)))
    found, _ = both(of_curve, left, right)
    assert (code(found), "input_ids, labels" in why(found)) == ("rng", True)


def test_equal_and_unfinished_curves_have_no_mismatch() -> None:
    assert both(of_curve, *curves()) == (None, None)
    assert both(of_curve, *curves(weights=[], losses=lost_at(3))) == (None, None)
    assert both(of_curve, side(), curves()[1]) == (None, None)
    assert both(evaluation_of, side(), curves()[1]) == (None, None)
    logs = [each.record.evidence.learn for each in curves()]
    assert first_step_apart(*logs) is None  # type: ignore[arg-type]


def test_rates_that_differ_by_rounding_at_each_of_many_steps_are_no_mismatch() -> None:
    """A long log is read once: read anew for each of its steps, it took minutes."""
    count = 10_000
    many = {
        "num_rows": [4] * count, "losses": [0.5] * count, "gradient_norms": [1.0] * count, "clipped_norms": [],
        "batches": {name: marks[:1] * count for name, marks in BATCHES.items()},
        "generators": {f"generator {number}": [[done, "c" * 16] for done in range(count)] for number in range(20)},
    }  # fmt: skip
    pair = curves(**many, learning_rates=[1e-3] * count)[1], curves(**many, learning_rates=[1e-3 + 1e-17] * count)[1]
    assert pair[0].record.evidence.learn != pair[1].record.evidence.learn
    assert logged(Pair(*pair), "learn") is None


@pytest.mark.parametrize(
    ("first", "losses", "text"),
    [
        ({"training_mode": True}, lost_at(), "the evaluation runs in training mode"),
        ({"num_rows": 5}, lost_at(), "a different number of rows is evaluated"),
        ({"rows_sha256": "f" * 64}, lost_at(1), "different rows are evaluated"),
        ({"loss": 0.1}, lost_at(3), "the evaluation after step 2 differs, the training of its weights does not"),
        ({"loss": 0.1}, lost_at(2), ""),
        ({"loss": 0.1}, lost_at(1), ""),
        ({"loss": 0.1}, lost_at(), "the evaluation after step 2 differs, the training of its weights does not"),
        ({"step": 3, "training_mode": True}, lost_at(4), ""),
        ({}, lost_at(4), ""),
    ],
)
def test_an_evaluation_of_a_curve_differs_by_itself_or_follows_the_training(
    first: Content, losses: list[float], text: str
) -> None:
    evaluations = [END | {"step": 2} | first, END]
    found, _ = both(evaluation_of, *curves(losses=losses, evaluations=evaluations))
    assert (why(found) if found else "") == text


def test_weights_that_part_before_an_equal_loss_explain_the_evaluation() -> None:
    """In bf16 an update that is slightly off shows in an evaluation before it shows in a loss."""
    pair = Pair(*curves(losses=lost_at(3), evaluations=[END | {"step": 2, "loss": 0.1}, END]))
    apart = logged(pair, "learn")
    assert apart is not None
    assert code(evaluated(pair, apart)) == "evaluation"
    assert evaluated(pair, replace(apart, at=apart.at.replace(step=0))) is None


def test_labels_that_only_an_evaluation_was_given_are_named_where_all_else_is_equal() -> None:
    given = {"evaluations": [END], "evaluated": [["a" * 16, "a" * 16]]}
    fed = {"evaluations": [END | {"loss": 0.1}], "evaluated": [["b" * 16, "a" * 16]]}
    found, _ = both(evaluation_of, side(with_learn(**given)), side(with_learn(**fed)))
    assert code(found) == "data.labels"
