"""The accuracy gate: within the margin, beyond what the choice of rows explains, or not to be told."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord

from .conftest import make_record


def learned(accuracy: float, losses: tuple[float, ...], weights: str, **changes: Any) -> LoadedRecord:
    made = make_record()
    evaluation = made.record.evidence.probe.evaluation.replace(accuracy=accuracy, num_rows=1024)  # type: ignore[union-attr]
    learn = {"steps": 2, "losses": losses, "evaluations": [evaluation.to_json()], "weights_sha256": weights * 64}
    evidence = made.record.evidence.replace(learn=learn | changes)
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


@pytest.mark.parametrize(
    ("accuracy", "verdict"), [(0.85, "pass"), (0.84, "pass"), (0.82, "inconclusive"), (0.7, "drift")]
)
def test_accuracy_against_the_margin_and_the_chance_of_its_rows(accuracy: float, verdict: str) -> None:
    reference, candidate = learned(0.85, (0.7, 0.5), "a"), learned(accuracy, (0.7, 0.6), "b")
    judgement = compare(reference, candidate)
    assert judgement.verdict == verdict
    assert any("curves part at step 1" in note for note in judgement.notes)
    assert [cause.code for cause in judgement.causes] == (["unattributed"] if verdict == "drift" else [])


def test_no_accuracy_is_no_pass_and_equal_curves_are() -> None:
    reference = learned(0.85, (0.7, 0.5), "a")
    assert compare(reference, reference).verdict == "pass"
    bare = learned(0.85, (0.7, 0.5), "c", evaluations=[])
    assert compare(reference, bare).verdict == "inconclusive"


def test_weights_that_nobody_knows_are_not_equal() -> None:
    partial = learned(0.85, (0.7, 0.5), "a", weights_sha256=None)
    details = [one.detail for one in compare(partial, partial).findings if one.check == "learn.accuracy"]
    assert details
    assert not any("equal to the bit" in detail for detail in details)
