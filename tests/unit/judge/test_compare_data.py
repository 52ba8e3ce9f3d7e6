"""`compare` tells edited rows, moved rows and other tokens apart, and finds the row."""

from __future__ import annotations

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from tests.said import said

from .conftest import ROWS, Plan, make_record
from .made_records import codes, judge, with_evidence


def test_a_row_that_is_gone_is_content(reference: LoadedRecord) -> None:
    plan = Plan(order=list(range(ROWS - 1)))
    del plan.texts[5], plan.labels[5]
    assert codes(compare(reference, make_record(plan))) == ["data.content"]


def test_a_doubled_row_in_a_late_batch_is_found_there(reference: LoadedRecord) -> None:
    order = list(range(ROWS))
    order[21] = 20
    judgement = judge(reference, order=order)
    assert codes(judgement) == ["data.order"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.step == 5
    assert "row 20 appears twice" in said(judgement.causes[0].why)


def test_other_ids_of_the_same_rows_are_tokenization(reference: LoadedRecord) -> None:
    assert codes(judge(reference, ids_shift=1)) == ["tokenization"]


def test_texts_edited_after_the_manifest_was_written_are_content_not_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[3] += 500
    made, data = make_record(plan), reference.record.evidence.data
    assert data is not None
    assert made.record.evidence.data is not None
    same_list = made.record.evidence.data.replace(shards=data.to_json()["shards"], manifest_sha256=data.manifest_sha256)
    assert codes(compare(reference, with_evidence(made, data=same_list.to_json()))) == ["data.content"]
