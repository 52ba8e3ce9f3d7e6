"""A different tokenizer file is a drift only where tokens that a run reads may differ."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Judgement
from tests.said import said

from .conftest import PROOFS, Plan, make_record, other_kernel
from .made_records import windows

OTHER = "d" * 64


def codes(judgement: Judgement) -> list[str]:
    return [cause.code for cause in judgement.causes]


def with_curve(mark: str, loss: float = 0.5, **changes: Any) -> LoadedRecord:
    """Return a record with a learning curve whose last batch has the digest `mark`."""
    made = make_record(**changes)
    learn = {"steps": 8, "evaluate_every": 8, "checkpoint_every": 8, "evaluation_rows": 6}
    spec = made.record.spec.replace(learn=learn)
    content = made.record.model_dump() | {"spec": spec.model_dump(), "spec_sha256": spec.digest}
    evaluation = content["evidence"]["probe"]["evaluation"] | {"step": 8}
    same = dict.fromkeys(("row_ids", "labels"), ["a" * 16] * 8)
    content["evidence"]["learn"] = {
        "steps": 8, "losses": [0.5] * 7 + [loss], "evaluations": [evaluation], "num_rows": [4] * 8,
        "batches": same | {"input_ids": ["a" * 16] * 7 + [mark * 16]}, "gradient_norms": [0.5] * 8,
        "learning_rates": [1e-3] * 8, "weights": [[0, "a" * 16], [8, "d" * 16]], "dropout": [0.1],
        "portable": windows(0, 7), "proofs": PROOFS, "chance": 0.0,
    }  # fmt: skip
    return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)


@pytest.mark.parametrize("fingerprint", [{}, other_kernel()], ids=["same machine", "different machine"])
def test_a_rewritten_file_with_equal_tokens_passes_with_a_note(
    reference: LoadedRecord, fingerprint: dict[str, Any]
) -> None:
    judgement = compare(reference, make_record(tokenizer=OTHER, fingerprint=fingerprint))
    assert judgement.verdict == "pass"
    assert "tokenizer" in [note.code for note in judgement.notes]


@pytest.mark.parametrize("shift", [0, 1])
def test_a_rewritten_file_adds_no_cause_to_a_different_order(reference: LoadedRecord, shift: int) -> None:
    judgement = compare(reference, make_record(tokenizer=OTHER, order=Plan().order[::-1], ids_shift=shift))
    assert codes(judgement) == ["data.order"]


@pytest.mark.parametrize("shift", [0, 1])
def test_a_rewritten_file_adds_no_cause_to_an_edited_text(reference: LoadedRecord, shift: int) -> None:
    plan = Plan(tokenizer=OTHER, ids_shift=shift)
    plan.texts[0] += 500
    assert codes(compare(reference, make_record(plan))) == ["data.content"]


def test_other_ids_of_equal_rows_name_the_other_file(reference: LoadedRecord) -> None:
    (cause,) = compare(reference, make_record(tokenizer=OTHER, ids_shift=1)).causes
    assert (cause.code, said(cause.evidence)[1]) == (
        "tokenization", "the tokenizer has other files, with the digest dddddddddddd",
    )  # fmt: skip


def test_different_rows_of_an_evaluation_are_its_own_fault(reference: LoadedRecord) -> None:
    judgement = compare(reference, make_record(tokenizer=OTHER, evaluation_rows=4))
    assert codes(judgement) == ["evaluation"]


def test_an_evaluation_that_differs_after_a_different_training_says_nothing_of_tokens(reference: LoadedRecord) -> None:
    judgement = compare(reference, make_record(tokenizer=OTHER, gradient_factor=1.5))
    assert codes(judgement) == ["gradient"]


@pytest.mark.parametrize(
    ("reference", "candidate", "expected"),
    [
        (with_curve("a"), with_curve("a", tokenizer=OTHER), []),
        (with_curve("a"), with_curve("b", 0.6, tokenizer=OTHER), ["tokenization"]),
        (
            with_curve("a"),
            with_curve("a", 0.5 + 1e-7, tokenizer=OTHER, noise={"head": 1e-7}, fingerprint=other_kernel()),
            [],
        ),
    ],
    ids=["equal", "different batches", "rounding"],
)
def test_tokens_that_only_the_learning_curve_reads_are_found(
    reference: LoadedRecord, candidate: LoadedRecord, expected: list[str]
) -> None:
    assert codes(compare(reference, candidate)) == expected
