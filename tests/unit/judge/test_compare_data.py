"""`compare` tells edited rows, moved rows and other tokens apart, and finds the row."""

from __future__ import annotations

import random

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.data import data
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_json
from plumbline.schema.record import RunRecord
from tests.said import said

from .conftest import EVALUATION_ROWS, ROWS, STEPS, Plan, make_record
from .made_records import codes, judge


@pytest.mark.parametrize("row", [0, 9, 23])
def test_one_edited_text_is_found_with_shard_and_row(reference: LoadedRecord, row: int) -> None:
    plan = Plan()
    plan.texts[row] += 500
    judgement = compare(reference, make_record(plan))
    assert codes(judgement) == ["data.content"]
    place = judgement.first_divergence
    assert place is not None
    assert (place.row, place.step, place.at) == (row, row // 4, f"shard train/{row // 8}.parquet row {row % 8}")


def _half_read(rows_of_dataset: list[int]) -> LoadedRecord:
    """Return a record of a run that reads 120 of 240 rows."""
    made = make_record()
    data = made.record.evidence.data
    assert data is not None
    shards = [{**shard.to_json(), "num_rows": shard.num_rows * 10} for shard in data.shards[:3]]
    read = np.arange(240)[::2]
    texts = np.array(rows_of_dataset, np.uint64)[read]
    rows = {"row_id": read, "text": texts, "label": texts % 2}
    content = data.replace(
        shards=shards,
        num_rows=120,
        rows_sha256=digest_json(texts.tolist()),
        manifest_sha256=digest_json(texts.tolist()),
    )
    evidence = made.record.evidence.replace(data=content.to_json())
    record = made.record.replace(evidence=evidence.to_json())
    return LoadedRecord(record, made.folder, made.arrays | {"rows": rows})


def _texts(change: str) -> list[int]:
    """Return 240 changed rows; the first 30, read by the probe, are unchanged."""
    rows = list(range(1000, 1240))
    if change in ("permuted", "half permuted", "quarter permuted"):
        moved = {"permuted": 240, "half permuted": 200, "quarter permuted": 110}[change]
        mixed = random.Random(5).sample(rows[30:moved], moved - 30)
        edited = [text + 5000 for text in rows[moved:]] if change != "permuted" else []
        return [*rows[:30], *mixed, *edited]
    if change == "copied":
        return [*rows[:120], *rows[:120]]
    return [*rows[:30], *(text + 5000 for text in rows[30:])]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("permuted", "data.order"), ("half permuted", "data.order"), ("quarter permuted", "data.content"),
        ("copied", "data.content"), ("edited", "data.content"),
    ],
)  # fmt: skip
def test_rows_that_moved_among_those_read_are_an_order_and_copies_are_content(change: str, code: str) -> None:
    """In a dataset that is read in part, some moved rows come from rows that the run does not read."""
    left, right = (_half_read(texts) for texts in (list(range(1000, 1240)), _texts(change)))
    assert [item.suspicions[0].code for item in data(Pair(left, right))] == [code]


@pytest.mark.parametrize(("num_moved", "code"), [(8, "data.order"), (6, "data.content")])
def test_few_moved_rows_are_no_order(num_moved: int, code: str) -> None:
    """Below four expected rows chance decides how many of them are found."""
    rows = list(range(1000, 1240))
    places = [*range(30, 30 + 2 * num_moved, 2)]
    moved = list(rows)
    for place, source in zip(places, [*places[1:], 101], strict=True):
        moved[place] = rows[source]
    result = data(Pair(*(_half_read(texts) for texts in (rows, moved))))
    assert [item.suspicions[0].code for item in result] == [code]


@pytest.mark.parametrize(("with_labels", "code"), [(True, "data.order"), (False, "data.content")])
def test_texts_that_move_without_their_labels_are_different_rows(with_labels: bool, code: str) -> None:
    """Chance gives half of the moved texts their own label again."""
    left, right = (_half_read(list(range(1000, 1240))) for _ in range(2))
    labels = np.random.default_rng(1).integers(0, 2, 120).astype(np.uint64)
    left.rows["label"] = labels
    right.rows["text"] = np.roll(left.rows["text"], 1)
    right.rows["label"] = np.roll(labels, 1) if with_labels else labels.copy()
    right.rows["text"][::9] += 5000  # some rows come from places that the reference did not read
    changed = right.record.evidence.data.replace(rows_sha256="f" * 64)
    evidence = right.record.evidence.replace(data=changed.to_json())
    right = LoadedRecord(right.record.replace(evidence=evidence.to_json()), right.folder, right.arrays)
    assert [item.suspicions[0].code for item in data(Pair(left, right))] == [code]


@pytest.mark.parametrize(("places", "code"), [([0, 2], "rng"), ([0, 1], "data.labels")])
def test_labels_of_other_places_are_another_draw_of_the_mask(places: list[int], code: str) -> None:
    def masked(places: list[int], value: int) -> LoadedRecord:
        made = make_record()
        labels = np.full((STEPS, 4, 8), -100)
        labels[:, :, places] = value
        made.arrays["batches"]["labels"] = labels
        content = made.record.model_dump()
        content["spec"]["task"] = "masked-lm"
        content["spec"]["model"]["num_labels"] = None
        content["evidence"]["probe"]["batches"]["labels"] = [digest_json([places, value])[:16]] * STEPS
        return LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays)

    result = batch(Pair(masked([0, 1], 5), masked(places, 6)), 0, frozenset())
    assert result is not None
    assert result.suspicions[0].code == code
    assert result.suspicions[0].names[-1] == "labels"


@pytest.mark.parametrize("row", [0, 13, ROWS + EVALUATION_ROWS - 1])
def test_one_edited_label_is_found_with_its_row(reference: LoadedRecord, row: int) -> None:
    plan = Plan()
    plan.labels[row] = 1 - plan.labels[row]
    judgement = compare(reference, make_record(plan))
    assert codes(judgement) == ["data.labels"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.row == row


def test_the_same_rows_in_another_place_are_an_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[2], plan.texts[9] = plan.texts[9], plan.texts[2]
    plan.labels[2], plan.labels[9] = plan.labels[9], plan.labels[2]
    assert codes(compare(reference, make_record(plan))) == ["data.order"]


def test_a_row_that_is_gone_is_content(reference: LoadedRecord) -> None:
    plan = Plan(order=list(range(ROWS - 1)))
    del plan.texts[5], plan.labels[5]
    assert codes(compare(reference, make_record(plan))) == ["data.content"]


def test_another_shuffle_is_an_order(reference: LoadedRecord) -> None:
    order = list(range(ROWS))
    random.Random(1).shuffle(order)
    judgement = judge(reference, order=order)
    assert codes(judgement) == ["data.order"]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.step) == ("batch", 0)


def test_a_doubled_row_in_a_late_batch_is_found_there(reference: LoadedRecord) -> None:
    order = list(range(ROWS))
    order[21] = 20
    judgement = judge(reference, order=order)
    assert codes(judgement) == ["data.order"]
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.step == 5
    assert "row 20 appears twice" in said(judgement.causes[0].why)


@pytest.mark.parametrize("tokenizer", ["a" * 64, "d" * 64])
def test_other_ids_of_the_same_rows_are_tokenization(reference: LoadedRecord, tokenizer: str) -> None:
    assert codes(judge(reference, ids_shift=1, tokenizer=tokenizer)) == ["tokenization"]


def test_texts_edited_after_the_manifest_was_written_are_content_not_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[3] += 500
    made, data = make_record(plan), reference.record.evidence.data
    assert data is not None
    assert made.record.evidence.data is not None
    same_list = made.record.evidence.data.replace(shards=data.to_json()["shards"], manifest_sha256=data.manifest_sha256)
    evidence = made.record.evidence.replace(data=same_list.to_json())
    candidate = LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)
    assert codes(compare(reference, candidate)) == ["data.content"]


def test_shards_listed_in_another_order_are_an_order(reference: LoadedRecord) -> None:
    plan = Plan()
    plan.texts[:16] = [*plan.texts[8:16], *plan.texts[:8]]
    plan.labels[:16] = [*plan.labels[8:16], *plan.labels[:8]]
    made, data = make_record(plan), reference.record.evidence.data
    assert data is not None
    assert made.record.evidence.data is not None
    shards = data.to_json()["shards"]
    moved = made.record.evidence.data.replace(shards=[shards[1], shards[0], *shards[2:]])
    evidence = made.record.evidence.replace(data=moved.to_json())
    candidate = LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)
    assert codes(compare(reference, candidate)) == ["data.order"]
