"""Arrays of a record's parts that do not have the form of their part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.records import LoadedRecord, limit_memory, load_record
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.record import RECORD_NAME
from tests.record_parts import write_arrays
from tests.unit.judge.conftest import BATCH, LENGTH, STEPS
from tests.unit.judge.made_records import edit, whole

TOKENS = ("input_ids", "attention_mask", "token_type_ids")


def with_part(name: str, changes: dict[str, Any], *, task: str = "sequence-classification") -> LoadedRecord:
    """Return a whole record whose part `name` has these arrays; `None` takes one away."""

    def change(content: dict[str, Any]) -> None:
        content["spec"]["task"] = task
        if task == "masked-lm":
            content["spec"]["model"]["num_labels"] = None
        arrays = content["arrays"].setdefault(name, {})
        for key, value in changes.items():
            arrays.pop(key, None) if value is None else arrays.update({key: value})

    return edit(whole(), change)


def refusal(name: str, changes: dict[str, Any], **options: Any) -> str:
    with pytest.raises(CorruptDataError) as caught:
        getattr(with_part(name, changes, **options), name)
    return str(caught.value)


def integers(*shape: int, dtype: str = "int64") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


def test_whole_parts_are_given_as_they_are() -> None:
    made = whole()
    made.read_parts()
    assert made.batches["input_ids"].shape == (STEPS, BATCH, LENGTH)
    assert made.batches["labels"].shape == made.batches["row_ids"].shape == (STEPS, BATCH)


def test_a_part_that_a_record_lacks_is_empty_whatever_others_it_has(tmp_path: Path) -> None:
    made = whole()
    for left_out in ("answers", "batches", "evaluation", "rows", "sketches", "state"):
        arrays = {name: arrays for name, arrays in made.arrays.items() if name not in {left_out, "capture"}}
        parts = [part.to_json() for part in write_arrays(tmp_path / left_out, arrays)]
        loaded = LoadedRecord(made.record.replace(parts=parts), tmp_path / left_out)
        assert getattr(loaded, left_out) == loaded.capture == {}
        assert all(getattr(loaded, name).keys() == arrays[name].keys() for name in arrays)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint32"])
def test_batches_may_have_other_rows_a_length_of_their_own_and_any_integers(dtype: str) -> None:
    changes = {name: integers(STEPS, 3, 5, dtype=dtype) for name in TOKENS}
    flat = {name: integers(STEPS, 3, dtype=dtype) for name in ("row_ids", "labels")}
    assert with_part("batches", changes | flat).batches["labels"].shape == (STEPS, 3)


def test_labels_of_masked_lm_have_the_length_of_the_tokens() -> None:
    labels = integers(STEPS, BATCH, LENGTH)
    assert with_part("batches", {"labels": labels}, task="masked-lm").batches["labels"].ndim == 3
    assert "labels is int64" in refusal("batches", {"labels": labels})
    assert "labels is int64" in refusal("batches", {"labels": labels[..., 0]}, task="masked-lm")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": integers(STEPS, BATCH)}, "'weights', which is not a field of a batch"),
        ({"row_ids": integers(STEPS, BATCH, dtype="float64")}, "row_ids is float64[6, 4], expected integers"),
        ({"input_ids": integers(STEPS, BATCH, LENGTH, dtype="bool")}, "input_ids is bool[6, 4, 8], expected integers"),
        ({"row_ids": integers(STEPS)}, "row_ids is int64[6], expected integers"),
        ({"row_ids": integers(STEPS, BATCH, 1)}, "row_ids is int64[6, 4, 1], expected integers"),
        ({"input_ids": integers(STEPS, BATCH)}, "input_ids is int64[6, 4], expected integers"),
        ({"row_ids": integers(STEPS - 1, BATCH)}, "row_ids has 5 steps, the probe 6"),
        ({"labels": integers(STEPS + 1, BATCH)}, "labels has 7 steps, the probe 6"),
        ({"labels": integers(STEPS, BATCH + 1)}, "labels has the shape [6, 5]"),
        ({"attention_mask": integers(STEPS, BATCH, LENGTH + 1)}, "attention_mask has the shape [6, 4, 9]"),
        ({"token_type_ids": integers(STEPS, BATCH + 1, LENGTH)}, "token_type_ids has the shape [6, 5, 8]"),
    ],
)
def test_batches_of_another_form_are_refused(changes: dict[str, Any], words: str) -> None:
    assert words in refusal("batches", changes)


def test_sketches_have_a_row_of_64_for_each_tap() -> None:
    made = whole()
    probe = made.record.evidence.probe
    assert probe is not None
    taps = len(probe.taps)
    for wrong in (np.zeros((taps - 1, 64)), np.zeros((taps, 63)), np.zeros((taps, 64), np.float32), None):
        assert f"does not contain float64 sketches of {taps} taps" in refusal("sketches", {"sketch": wrong})
    without = edit(made, lambda content: content["evidence"].update(probe=None))
    assert LoadedRecord(without.record, made.folder, {"sketches": {"sketch": np.zeros((0, 64))}}).sketches


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": None}, "its columns differ"),
        ({"row_id": None}, "its columns differ"),
        ({"more": integers(3)}, "its columns differ"),
        ({"row_id": np.array([1, 1, 2])}, "column text is not uint64 throughout"),
        ({"row_id": integers(3, dtype="int32")}, "column row_id is not int64"),
        ({"label": integers(3)}, "column label is not uint64"),
    ],
)
def test_rows_of_another_form_are_refused(changes: dict[str, Any], words: str) -> None:
    assert words in refusal("rows", changes)


@pytest.mark.parametrize("row_ids", [[1, 1, 2], [0, 2, 1], [[0, 1, 2]]])
def test_rows_come_in_the_order_of_their_row_ids_and_once(row_ids: list[Any]) -> None:
    values = {"row_id": np.array(row_ids), "text": np.zeros(np.shape(row_ids), np.uint64)}
    assert "not in the order of row_id" in refusal("rows", values | {"label": values["text"]})


def test_an_evaluation_has_arrays_of_one_length() -> None:
    assert "different lengths" in refusal("evaluation", {"logits": np.zeros((2, 3))})
    assert with_part("evaluation", dict.fromkeys(("row_ids", "predictions", "logits"))).evaluation == {}


def answers(right: list[int], accuracy: float, num_rows: int) -> LoadedRecord:
    """Return a record with these answers, and this last evaluation of `learn`."""

    def change(content: dict[str, Any]) -> None:
        content["evidence"]["learn"]["evaluations"][-1].update(accuracy=accuracy, num_rows=num_rows)
        content["arrays"]["answers"] = {
            "row_ids": np.arange(len(right), dtype=np.int64), "right": np.array(right, np.uint8),
        }  # fmt: skip

    return edit(whole(), change)


@pytest.mark.parametrize(
    ("right", "num_rows"),
    [([1, 0], 4), ([1, 0, 0, 1], 3), ([], 4)],
)
def test_answers_are_of_the_rows_of_the_last_evaluation(right: list[int], num_rows: int) -> None:
    assert len(answers([1, 0, 1, 1], 0.75, 4).answers["right"]) == 4
    with pytest.raises(CorruptDataError, match="not those of the last evaluation"):
        _ = answers(right, 0.5, num_rows).answers


def test_answers_without_a_last_evaluation_are_refused() -> None:
    made = answers([1, 0], 0.5, 2)
    without = edit(made, lambda content: content["evidence"].update(learn=None))
    with pytest.raises(CorruptDataError, match="not those of the last evaluation"):
        _ = without.answers


ROW_IDS, RIGHT = np.arange(4, dtype=np.int64), np.array([1, 0, 1, 0], np.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"right": RIGHT}, "its arrays are not row_ids and right"),
        ({"row_ids": ROW_IDS}, "its arrays are not row_ids and right"),
        ({"row_ids": ROW_IDS, "right": RIGHT, "more": RIGHT}, "its arrays are not row_ids and right"),
        ({"row_ids": ROW_IDS.astype(np.int32), "right": RIGHT}, "row_ids is not int64"),
        ({"row_ids": ROW_IDS, "right": RIGHT.astype(np.int8)}, "right not uint8"),
        ({"row_ids": ROW_IDS[:, None], "right": RIGHT[:, None]}, "lengths differ"),
        ({"row_ids": ROW_IDS[:3], "right": RIGHT}, "lengths differ"),
        ({"row_ids": ROW_IDS, "right": RIGHT * 2}, "values other than 0 and 1"),
    ],
)
def test_answers_of_another_form_are_refused(changes: dict[str, Any], words: str) -> None:
    assert words in refusal("answers", changes)


def test_the_oldest_records_leave_memory_and_are_read_again_on_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plumbline.records.loaded_record._MAX_IN_MEMORY", 2)

    def loaded(name: str) -> LoadedRecord:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / RECORD_NAME).write_text(whole().record.model_dump_json(), "utf-8")
        return limit_memory(load_record(tmp_path / name))

    def held(*records: LoadedRecord) -> list[bool]:
        return ["record" in vars(record) for record in records]

    first, second, third = map(loaded, "abc")
    assert held(first, second, third) == [False, True, True]
    assert limit_memory(second) is second  # the oldest one, asked for again
    assert first.record == third.record
    loaded("d")  # nobody holds it: it has left memory by itself
    fourth, fifth = map(loaded, "ef")
    assert held(first, second, third, fourth, fifth) == [False] * 3 + [True] * 2
