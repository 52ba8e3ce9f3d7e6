"""Gate of learning: a curve whose accuracy is not above chance never passes."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare, judge_round
from plumbline.judge.gates.gate import GateRequest
from plumbline.judge.gates.learned import learned_gate
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Finding
from tests.said import said

from .made_records import edit, in_spec, whole


def ended(accuracy: float, chance: float | None, num_predicted: int | None = 2, **spec: Any) -> LoadedRecord:
    """Return a training whose evaluations have this accuracy."""

    def change(content: dict[str, Any]) -> None:
        content["evidence"]["learn"].update(chance=chance, num_predicted=num_predicted)
        for evaluation in content["evidence"]["learn"]["evaluations"]:
            evaluation["accuracy"] = accuracy

    return edit(whole(), in_spec("learn", **spec), change)


def found(accuracy: float, chance: float | None, num_predicted: int | None, num_rows: int) -> tuple[Finding, ...]:
    """Return the gate's findings on a training with this many evaluated rows."""

    def many(content: dict[str, Any]) -> None:
        content["evidence"]["learn"]["evaluations"][-1]["num_rows"] = num_rows

    made = edit(ended(accuracy, chance, num_predicted), many)
    return learned_gate(Pair(made, made), GateRequest(Gates())).findings


@pytest.mark.parametrize(
    ("accuracy", "chance", "num_predicted", "sentence"),
    [
        (0.5, 0.5, 1, "every row gets the same label, which is right for 50.00% (chance: 50.00%)"),
        (0.5078, 0.5, 2, "50.78% is chance (50.00%) within its noise"),
        (0.5742, 0.5078, 2, "57.42% is chance"),
        (1.0, 1.0, 1, "every row gets the same label"),  # all labels are equal
        (0.02, 0.06, None, "2.00% is chance"),  # of hidden tokens
    ],
)
def test_an_accuracy_of_chance_is_a_finding_that_says_so(
    accuracy: float, chance: float, num_predicted: int | None, sentence: str
) -> None:
    (finding,) = found(accuracy, chance, num_predicted, 256)
    assert (finding.check, finding.outcome, finding.observed) == ("learn.learned", "inconclusive", accuracy)
    assert said(finding.detail).startswith(f"nothing was learned: {sentence}")


@pytest.mark.parametrize(("accuracy", "num_rows"), [(0.8125, 256), (0.59, 256), (0.53, 4096)])
def test_an_accuracy_above_chance_by_more_than_its_noise_is_learned(accuracy: float, num_rows: int) -> None:
    assert found(accuracy, 0.5078, 2, num_rows) == ()
    assert found(0.5078, 0.5078, 2, num_rows) != ()


@pytest.mark.parametrize("chance", [0.5, None])
def test_no_road_passes_a_model_that_has_learned_nothing(chance: float | None) -> None:
    made, expected = ended(0.5, chance), ended(0.5, chance, expect="chance")
    assert compare(made, made).verdict == "inconclusive"
    result = judge_round({"p": made}, "p", {})["p"]
    assert (result.verdict, result.accuracy, result.chance) == ("inconclusive", 0.5, chance)
    assert judge_round({"p": expected}, "p", {})["p"].verdict == compare(expected, expected).verdict == "pass"
