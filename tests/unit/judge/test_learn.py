"""Accuracy gate: within the margin, significantly beyond, or inconclusive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.confirmation import Request
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Finding
from tests.said import said

from .conftest import other_kernel
from .made_records import answered, learned


def _gate(reference: LoadedRecord, candidate: LoadedRecord) -> Finding:
    return next(one for one in compare(reference, candidate).findings if one.check == "learn.accuracy")


def test_one_pair_is_compared_row_by_row_and_says_what_it_resolves() -> None:
    reference = answered([1] * 850 + [0] * 150, (0.7, 0.5), "a")
    worse = answered([0] * 100 + [1] * 750 + [0] * 150, (0.7, 0.6), "b", fingerprint=other_kernel())
    finding = _gate(reference, worse)
    assert finding.outcome == "drift"
    assert "100 rows right in the reference alone, 0 in the candidate alone (McNemar p = 1.6e-30)" in said(
        finding.detail
    )
    assert "these rows can show a gap of 3.2%, 2627 would show 2.0%" in said(finding.detail)


def test_answers_that_contradict_the_accuracy_are_a_drift_of_the_evaluation() -> None:
    made = answered([1, 1, 0, 0], (0.7, 0.5), "a")
    more = {"row_ids": np.arange(4), "right": np.array([1, 1, 1, 0], np.uint8)}
    off = LoadedRecord(made.record, made.folder, {**made.arrays, "answers": more})
    assert [cause.code for cause in compare(made, off).causes] == ["evaluation"]


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.85, "pass"), (0.84, "pass"), (0.82, "inconclusive"), (0.7, "drift")]
)
def test_accuracy_against_the_margin_and_the_chance_of_its_rows(accuracy: float, verdict: str) -> None:
    reference = learned(0.85, (0.7, 0.5), "a")
    candidate = learned(accuracy, (0.7, 0.6), "b", fingerprint=other_kernel())
    judgement = compare(reference, candidate)
    assert judgement.verdict == verdict
    assert any(note.code == "curve" and "separate at step 1" in said(note.text) for note in judgement.notes)
    assert [cause.code for cause in judgement.causes] == (["unattributed"] if verdict == "drift" else [])
    place = judgement.first_divergence
    assert (place and (place.part, place.at)) == (("learn", "accuracy") if verdict == "drift" else None)


RATES, ROWS = (1e-3, 5e-4), ("a" * 16, "b" * 16)


def test_an_interrupted_curve_of_equal_bits_passes() -> None:
    reference = learned(0.85, (0.7, 0.5), "a")
    assert compare(reference, learned(0.85, (0.7, 0.5), "a", resumed_at=[1])).verdict == "pass"


@pytest.mark.parametrize(("rates", "verdict"), [(RATES, "drift"), ((0.0, 0.0), "pass")])
def test_two_curves_that_train_nothing_alike_do_not_pass(rates: tuple[float, ...], verdict: str) -> None:
    idle = learned(0.85, (0.7, 0.7), "a", weights=[[0, "a" * 16], [2, "a" * 16]], learning_rates=rates)
    judgement = compare(idle, idle)
    assert judgement.verdict == verdict
    assert [(cause.code, cause.sure) for cause in judgement.causes] == [("optimizer", "likely")] * (verdict == "drift")


def rerun_of(record: LoadedRecord, request: Request) -> LoadedRecord:
    """What the trainer leaves for an experiment on the learning curve: its first steps."""
    learn = record.record.evidence.learn
    assert learn is not None
    cut = learn.replace(steps=request.experiment.steps, losses=learn.losses[: request.experiment.steps])
    evidence = record.record.evidence.replace(learn=cut.to_json(), probe=None)
    changed = record.record.replace(experiment=request.experiment.to_json(), evidence=evidence.to_json())
    return LoadedRecord(changed, record.folder, record.arrays)


LOGGED: dict[str, Any] = {"learning_rates": RATES, "batches": {"row_ids": ROWS}, "dropout": [0.1]}
EVALUATED: dict[str, Any] = {"losses": (0.7, 0.5), "weights": "a", "accuracy": 0.84}
SAME, HEALED, THIRD = "candidate", "reference", "third"


@pytest.mark.parametrize(
    ("changes", "first", "second", "code", "sure", "rungs"),
    [
        ({"dropout": [0.2]}, SAME, HEALED, "rng", "confirmed", ["dropout"]),
        ({"dropout": [0.2]}, SAME, SAME, "rng", "confirmed", ["dropout"]),
        ({"dropout": [0.2]}, HEALED, None, "nondeterminism", "confirmed", []),
        ({"dropout": [0.2]}, THIRD, HEALED, "nondeterminism", "confirmed", []),
        ({"learning_rates": [1e-3, 1e-3]}, SAME, HEALED, "schedule", "confirmed", ["schedule"]),
        ({"learning_rates": [1e-3, 1e-3], "resumed_at": [1]}, HEALED, None, "schedule", "confirmed", []),
        ({"resumed_at": [1]}, HEALED, None, "optimizer", "confirmed", []),
        ({"resumed_at": [1]}, SAME, None, "optimizer", "likely", []),
        ({"resumed_at": [2]}, HEALED, None, "nondeterminism", "confirmed", []),
        ({"batches": {"row_ids": ["a" * 16, "c" * 16]}}, SAME, None, "data.order", "confirmed", []),
        ({}, SAME, None, "unattributed", "unattributed", []),
        (EVALUATED, SAME, HEALED, "evaluation", "confirmed", ["evaluation"]),
        (EVALUATED, SAME, SAME, "evaluation", "likely", ["evaluation"]),
        ({"losses": (0.7, 0.5)}, THIRD, None, "nondeterminism", "confirmed", []),
    ],
)  # fmt: skip
def test_an_experiment_names_what_parts_a_curve_below_an_equal_probe(  # noqa: PLR0917 - pytest's
    changes: dict[str, Any], first: str, second: str | None, code: str, sure: str, rungs: list[str]
) -> None:
    changes = dict(changes)
    losses, weights, accuracy = (
        changes.pop(name, other) for name, other in (("losses", (0.7, 0.6)), ("weights", "b"), ("accuracy", 0.85))
    )
    sides = {
        HEALED: learned(0.85, (0.7, 0.5), "a", **LOGGED),
        SAME: learned(accuracy, losses, weights, **(LOGGED | changes)),
        THIRD: learned(0.8, (0.7, 0.4), "c", **LOGGED),
    }
    state = begin(sides[HEALED], sides[SAME], compare(sides[HEALED], sides[SAME]), 6)
    answers, asked = iter(filter(None, (first, second))), []
    while (request := next_request(state)) is not None:
        asked.append(request)
        side = HEALED if request.runs_on == "reference" else next(answers)
        state = after_experiment(state, request, rerun_of(sides[side], request))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, sure)]
    assert [one.stage for request in asked for one in request.experiment.replays] == rungs
    assert {(request.experiment.part, request.experiment.steps) for request in asked} == {("learn", 2)}
    assert state.judgement.verdict == "drift"
    assert said(state.judgement.causes[0].tried)
