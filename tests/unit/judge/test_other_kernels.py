"""Evaluations and learning curves between machines whose rounding differs: what no rounding changes is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.whole import stands_alone
from plumbline.schema.digest import digest_array

from .made_records import LOG, Content, evaluation, probe, rounded, whole

Change = Callable[[Content], Any]


def verdict(*changes: Change, **plan: Any) -> str:
    return compare(whole(), rounded(*changes, **plan)).verdict


# The evaluation.


def predicted(content: Content) -> None:
    part = dict(content["arrays"]["evaluation"])
    part["predictions"] = 1 - part["predictions"]
    content["arrays"]["evaluation"] = part
    probe(content)["evaluation"]["predictions_sha256"] = digest_array(part["predictions"])


def shown_without(name: str) -> Change:
    def change(content: Content) -> None:
        content["arrays"]["evaluation"] = {k: v for k, v in content["arrays"]["evaluation"].items() if k != name}

    return change


EVALUATIONS: dict[str, tuple[Change, str]] = {
    "accuracy": (lambda c: probe(c)["evaluation"].update(accuracy=0.0), "drift"),
    "a small difference of the accuracy": (lambda c: probe(c)["evaluation"].update(accuracy=0.5 + 1e-6), "drift"),
    "loss": (lambda c: probe(c)["evaluation"].update(loss=99.0), "drift"),
    "a small difference of the loss": (
        lambda c: probe(c)["evaluation"].update(loss=probe(c)["evaluation"]["loss"] + 1e-5), "drift",
    ),
    "no loss": (lambda c: probe(c)["evaluation"].update(loss=None), "drift"),
    "no accuracy": (lambda c: probe(c)["evaluation"].update(accuracy=None), "drift"),
    "predictions": (predicted, "drift"),
    "a digest of other predictions": (
        lambda c: probe(c)["evaluation"].update(predictions_sha256="f" * 64), "invalid",
    ),
    "no logits": (shown_without("logits"), "invalid"),
    "no rows": (shown_without("row_ids"), "invalid"),
    "no predictions": (shown_without("predictions"), "invalid"),
    "no part": (lambda c: c["arrays"].update(evaluation={}), "invalid"),
    "another step": (lambda c: probe(c)["evaluation"].update(step=3000), "invalid"),
}  # fmt: skip


@pytest.mark.parametrize("name", EVALUATIONS)
def test_numbers_of_an_evaluation_follow_from_its_logits(name: str) -> None:
    change, expected = EVALUATIONS[name]
    judgement = compare(whole(), rounded(change))
    assert judgement.verdict == expected
    if expected == "drift":
        assert [cause.code for cause in judgement.causes] == ["evaluation"]


def logits(content: Content, values: np.ndarray[Any, Any], predictions: list[int]) -> None:
    rows = len(values)
    part = {"row_ids": np.arange(rows), "predictions": np.array(predictions), "logits": values.astype(np.float32)}
    content["arrays"]["evaluation"] = part
    names = {"rows_sha256": "row_ids", "predictions_sha256": "predictions", "logits_sha256": "logits"}
    probe(content)["evaluation"].update({name: digest_array(part[key]) for name, key in names.items()})


# The learning curve.


def curve(**changes: Any) -> Change:
    return lambda content: content["evidence"]["learn"].update(changes)


BATCHES = dict.fromkeys(("row_ids", "input_ids", "labels"), LOG)
OTHER_LOG = [*LOG[:5], "f" * 16, *LOG[6:]]
CURVES: dict[str, tuple[Change, str]] = {
    "batches": (curve(batches=BATCHES | {"row_ids": OTHER_LOG, "labels": OTHER_LOG}), "data.order"),
    "rows alone": (curve(batches=BATCHES | {"row_ids": OTHER_LOG}), "data.order"),
    "labels": (curve(batches=BATCHES | {"labels": OTHER_LOG}), "data.labels"),
    "tokens": (curve(batches=BATCHES | {"input_ids": OTHER_LOG}), "tokenization"),
    "learning rates": (curve(learning_rates=[5e-3] * 8), "schedule"),
    "dropout": (curve(dropout=[0.5]), "rng"),
    "start": (curve(weights=[[0, "f" * 16], [8, "d" * 16]]), "weights.init"),
    "first loss": (curve(losses=[0.501] + [0.5] * 7), "unattributed"),
    "huge losses": (curve(losses=[0.5] + [1e30] * 7), "unattributed"),
    "evaluated rows": (
        curve(evaluations=[evaluation(4) | {"rows_sha256": "f" * 64}, evaluation(8)]), "evaluation",
    ),
    "mode of an evaluation": (
        curve(evaluations=[evaluation(4), evaluation(8) | {"training_mode": True}]), "evaluation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURVES)
def test_what_a_curve_logs_exactly_is_compared_on_every_machine(name: str) -> None:
    change, code = CURVES[name]
    judgement = compare(whole(), rounded(change))
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == [code]
    assert compare(whole(), whole(change)).verdict == "drift"


def test_curves_that_rounding_separates_pass() -> None:
    """With dropout, losses and weights part; the first loss differs by rounding alone."""
    losses = [0.5 * (1 + 1e-6), *(0.5 + 0.03 * step for step in range(1, 8))]
    rounded = curve(losses=losses, weights=[[0, "e" * 16], [8, "c" * 16]], learning_rates=[1e-3 * (1 + 2e-16)] * 8)
    assert verdict(rounded) == "pass"


LOGS = {
    "batches": {}, "num_rows": [], "learning_rates": [], "dropout": None,
    "weights": [[8, "d" * 16]],
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_what_a_curve_should_log_is_missing_and_not_equal(name: str) -> None:
    lost = curve(**{name: LOGS[name]})
    assert verdict(lost) == compare(whole(), whole(lost)).verdict == "inconclusive"
    assert not stands_alone(rounded(lost))
    assert compare(whole(lost), rounded()).verdict == "inconclusive"


def test_a_curve_that_continued_a_checkpoint_has_the_digests_of_all_steps() -> None:
    short = {name: marks[:4] for name, marks in BATCHES.items()}
    assert verdict(curve(batches=short, resumed_at=[4])) == "invalid"


@pytest.mark.parametrize("fields", [{"loss": None}, {"accuracy": None}], ids=str)
def test_an_evaluation_of_a_curve_has_finite_numbers(fields: dict[str, None]) -> None:
    assert verdict(curve(evaluations=[evaluation(4) | fields, evaluation(8)])) == "invalid"
