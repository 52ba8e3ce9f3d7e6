"""Rungs of the learning curve and of its traces: the first logged difference, and what lies between two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from plumbline.judge.rungs.traced import between_steps, drew_differently, operator_of

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.learning import evaluating, first_logged_difference, learning
from plumbline.records import LoadedRecord
from tests.kept_results import keep
from tests.said import said

from .rung_records import END, LEARN, STEP, Content, both, code, log, masked, side, why, with_learn

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
        "the curves separate at step 3, with equal batches and learning rates: an experiment's trace names more",
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


# Traces of a curve.


def traced(
    first: int = 4, weights: str = "aaaaaaaaaaa", updated: str = "a", draws: Any = (), **learn: Any
) -> LoadedRecord:
    def change(content: Content) -> None:
        marks = [f"{place:x}{mark * 15}" for place, mark in enumerate(weights)]
        content["evidence"]["trace"] = {"first": first, "weights": marks, "draws": draws}
        content["evidence"]["probe"]["steps"][1]["weights_sha256"] = updated * 64
        if learn:
            spec = side().record.spec.replace(learn={"steps": 12, "evaluation_rows": 6} | learn)
            content |= {"spec": spec.model_dump(), "spec_sha256": spec.digest}

    return side(change)


@pytest.mark.parametrize(
    ("learn", "named", "text"),
    [
        ({"checkpoint_every": 3, "evaluate_every": 6}, "optimizer", ", where a checkpoint was saved"),
        ({"checkpoint_every": 12, "evaluate_every": 3}, "evaluation", ", in an evaluation"),
        ({"checkpoint_every": 12, "evaluate_every": 4}, "optimizer", "before step 2"),
        ({}, "optimizer", "before step 2"),
    ],
)
def test_weights_that_change_between_two_steps_are_named_by_what_the_curve_does_there(
    learn: Content, named: str, text: str
) -> None:
    plain, changed = traced(**learn), traced(weights="aaaaaabbbbb", **learn)
    found, _ = both(between_steps, plain, changed, 2)
    assert code(found) == named
    assert why(found).endswith(text)
    assert both(between_steps, plain, changed, 1) == (None, None)
    assert both(between_steps, plain, traced(weights="bbbbbbbbbbb", **learn), 0) == (None, None)
    assert both(between_steps, plain, plain, 2) == (None, None)
    # The update itself differs, the checksum is missing, or one side has no trace.
    assert both(between_steps, plain, traced(weights="aaaaaabbbbb", updated="b", **learn), 2) == (None, None)
    assert both(between_steps, plain, traced(weights="aaaaab", **learn), 2) == (None, None)
    assert both(between_steps, plain, traced(weights="aaaaabb", **learn), 2)[0] is not None
    assert both(between_steps, side(), changed, 2) == (None, None)


def drop(step: int, name: str, given: str, dropped: str) -> Content:
    return {"step": step, "name": name, "input_sha256": given * 64, "dropped_sha256": dropped * 64}


def test_a_dropout_draws_differently_where_an_equal_input_loses_different_elements() -> None:
    name = "layer.norm.drop"
    plain = traced(draws=[drop(2, name, "c", "d"), drop(STEP, name, "a", "b"), drop(STEP, "embed.drop", "a", "b")])
    rest = [drop(2, name, "c", "d"), drop(STEP, "embed.drop", "a", "b")]
    other_mask = traced(draws=[*rest, drop(STEP, name, "a", "f")])
    other_input = traced(draws=[*rest, drop(STEP, name, "f", "f")])
    fewer = traced(draws=rest)
    tap = side().record.evidence.probe.taps[2].replace(name=name, kind="Dropout")  # type: ignore[union-attr]
    for right, draws in ((other_mask, True), (other_input, False), (plain, False)):
        assert both(drew_differently, plain, right, STEP, name, "Dropout") == (draws, draws)
        keep(operator_of(Pair(plain, right), STEP, tap))
        assert not drew_differently(Pair(plain, right), 2, name, "Dropout")
    assert operator_of(Pair(plain, other_mask), STEP, tap) == f"Dropout {name}"
    assert (
        said(operator_of(Pair(plain, other_input), STEP, tap)) == "LayerNorm layer.norm, in its operations before drop,"
    )
    aside = tap.replace(name="x.y.drop")
    pair = Pair(*(traced(draws=[drop(STEP, "x.y.drop", mark, "b")]) for mark in "ab"))
    assert said(operator_of(pair, STEP, aside)) == "module x.y, in its operations before drop,"
    # A dropout that only one side calls belongs to the module around it.
    assert both(drew_differently, plain, fewer, STEP, "layer.norm", "LayerNorm") == (True, True)
    assert both(drew_differently, plain, fewer, STEP, "layer", "Layer") == (True, True)
    assert both(drew_differently, plain, fewer, STEP, "layer.no", "Layer") == (False, False)
    assert both(drew_differently, plain, fewer, 2, "layer.norm", "LayerNorm") == (False, False)
    # Without traces the class alone shows a dropout.
    for pair in (Pair(side(), side()), Pair(side(), plain), Pair(plain, side())):
        assert drew_differently(pair, STEP, name, "StableDropout")
        assert not drew_differently(pair, STEP, "layer.norm", "LayerNorm")


def test_a_module_that_skips_all_of_its_parts_draws_nothing_by_that_alone() -> None:
    """As a layer that returns its input: its dropout is not called, and neither are its other modules."""
    plain = traced(draws=[drop(2, "layer.norm.drop", "a", "b")])
    skipped = traced()
    probe = skipped.record.evidence.probe
    assert probe is not None
    taps = [tap for tap in probe.taps if (tap.step, tap.name) != (2, "layer.linear")]
    evidence = skipped.record.evidence.replace(probe=probe.model_copy(update={"taps": tuple(taps)}))
    skipped = replace(skipped, record=skipped.record.model_copy(update={"evidence": evidence}))
    assert drew_differently(Pair(plain, traced()), 2, "layer", "Layer")
    assert not drew_differently(Pair(plain, skipped), 2, "layer", "Layer")
