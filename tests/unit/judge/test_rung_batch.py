"""Rung of the batches: the first different row and field, padding, order, and hidden tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch, code_of_fields
from plumbline.schema.sketch import mark

from .conftest import BATCH, LENGTH, STEPS, set_step
from .rung_records import STEP, Change, Content, both, code, masked, side, why


def field(name: str, value: Any, step: int = STEP) -> Change:
    """Give a step's batch a different array; `None` loses the array, but not its digest."""

    def change(content: Content) -> None:
        arrays = content["arrays"]["batches"]
        if value is None:
            del arrays[name]
            return
        steps = (
            np.ones((STEPS, *value.shape), np.int64) if value.shape != arrays[name].shape[1:] else arrays[name].copy()
        )
        steps[step] = value
        arrays[name] = steps
        set_step(content["evidence"]["probe"], step, {"batch": {name: mark(np.asarray(value))}})

    return change


def of_batch(name: str, step: int = STEP) -> Any:
    return side().batches[name][step].copy()


def with_values(name: str, values: dict[int, Any]) -> Change:
    """Give rows of a batch different values."""
    array = of_batch(name)
    for row, value in values.items():
        array[row] = value
    return field(name, array)


def test_a_batch_names_the_first_different_row_and_field() -> None:
    plain = side()
    assert batch(Pair(plain, plain), STEP, frozenset()) is None
    labels = side(with_values("labels", {1: 7, 2: 7}))
    found, _ = both(batch, plain, labels, STEP, frozenset())
    assert (code(found), found.at.at, found.at.row) == ("data.labels", "labels of batch row 1", 13)
    assert batch(Pair(plain, labels), STEP - 1, frozenset()) is None
    assert batch(Pair(plain, labels), STEP, frozenset({"labels"})) is None
    ids = side(with_values("input_ids", {2: 7}), with_values("labels", {3: 7}))
    found, _ = both(batch, plain, ids, STEP, frozenset())
    assert (code(found), found.at.at, found.at.row) == ("tokenization", "input_ids of batch row 2", 14)
    assert found.suspicions[0].names[-1] == "labels"
    found, _ = both(batch, plain, side(with_values("attention_mask", {1: 0})), STEP, frozenset())
    assert "labels" not in found.suspicions[0].names
    # A field that only one of the two has, and no array shows.
    more = side(lambda c: c["evidence"]["probe"]["batches"].update(position_ids=["e" * 16] * STEPS))
    found, _ = both(batch, plain, more, STEP, frozenset())
    assert found.at.at == "position_ids"


def test_padding_is_named_by_both_shapes() -> None:
    wide = np.ones((BATCH, LENGTH + 3), np.int64)
    padded = side(*(field(name, wide) for name in ("input_ids", "attention_mask", "token_type_ids")))
    found, other = both(batch, side(), padded, STEP, frozenset())
    assert why(found) == "the same rows, padded to [4, 11] instead of [4, 8]"
    assert why(other) == "the same rows, padded to [4, 8] instead of [4, 11]"
    assert found.at.at == "input_ids of batch row 0"


def test_the_order_of_a_batch_is_described_by_what_became_of_its_rows() -> None:
    plain, rows = side(), [12, 13, 14, 15]

    def became(*other: int) -> tuple[Mismatch, Mismatch]:
        shorter = [field(name, of_batch(name)[: len(other)]) for name in plain.batches if len(other) < len(rows)]
        return both(batch, plain, side(*shorter, field("row_ids", np.array(other))), STEP, frozenset())

    assert plain.batches["row_ids"][STEP].tolist() == rows
    assert why(became(12, 14, 13, 15)[0]) == "the batch contains the same rows in a different order"
    twice, once = became(12, 14, 14, 15)
    assert why(twice) == "row 14 appears twice in the batch"
    assert why(once) == "1 of 4 rows of the batch differ from the reference's"
    assert why(became(12, 20, 20, 15)[0]) == "2 of 4 rows of the batch differ from the reference's"
    assert why(became(12, 20, 21, 22)[0]) == "3 of 4 rows of the batch differ from the reference's"
    fewer, more = became(12, 13, 14)
    assert (why(fewer), fewer.at.row) == ("the batch contains 3 rows instead of 4", None)
    assert (why(more), more.at.row) == ("the batch contains 4 rows instead of 3", 15)
    assert fewer.at.at == more.at.at == "row_ids of batch row 3"
    none, some = became()
    assert (why(none), none.at.at, none.at.row) == (
        "the batch contains 0 rows instead of 4",
        "row_ids of batch row 0",
        None,
    )
    assert (some.at.at, some.at.row) == ("row_ids of batch row 0", 12)


def test_arrays_that_a_record_lacks_leave_the_digests() -> None:
    moved = field("row_ids", np.array([12, 14, 13, 15]))
    found, other = both(batch, side(), side(moved, field("row_ids", None)), STEP, frozenset())
    assert why(found) == why(other) == "the batch contains different rows, or the same rows in a different order"
    assert found.at.at == "row_ids"
    labels = with_values("labels", {1: 7})
    found, other = both(batch, side(), side(labels, field("row_ids", None)), STEP, frozenset())
    assert (found.at.row, other.at.row) == (None, 13)
    found, _ = both(batch, side(), side(labels, field("labels", None)), STEP, frozenset())
    assert found.at.at == "labels"


def draw(*places: tuple[int, int], token: int = 30) -> list[Change]:
    """Hide tokens: the ids get a mask's token there, the labels what it hides."""
    ids = of_batch("input_ids")
    labels = np.full_like(ids, -100)
    for place in places:
        labels[place], ids[place] = ids[place], token
    return [masked, field("input_ids", ids), field("labels", labels)]


def test_digests_alone_show_that_a_text_of_a_different_length_is_no_draw() -> None:
    drawn = ("input_ids", "labels")
    assert code_of_fields(drawn, masked=True) == "rng"
    assert code_of_fields(drawn[:1], masked=True) == "tokenization"  # a draw changes its labels, too
    for field_of_texts in ("attention_mask", "token_type_ids"):
        assert code_of_fields((*drawn, field_of_texts), masked=True) == "tokenization"


def test_hidden_tokens_of_the_same_text_are_a_draw_and_of_a_different_text_are_not() -> None:
    reference = side(*draw((1, 2), (2, 5)))
    found, _ = both(batch, reference, side(*draw((1, 3), (2, 5))), STEP, frozenset())
    assert code(found) == "rng"
    assert "different masked positions" in why(found)
    shifted = side(*draw((1, 3), (2, 5)), with_values("input_ids", {3: 9}))
    assert code(both(batch, reference, shifted, STEP, frozenset())[0]) == "tokenization"
    labels = np.where(of_batch("input_ids") == of_batch("input_ids")[0, 0], 5, -100)
    other_places = side(*draw((1, 2), (2, 5)), field("labels", labels))
    assert code(both(batch, reference, other_places, STEP, frozenset())[0]) == "rng"
    other = side(*draw((1, 2), (2, 5)))
    other_labels = np.asarray(other.batches["labels"][STEP]).copy()
    other_labels[other_labels != -100] += 1
    same_places = side(*draw((1, 2), (2, 5)), field("labels", other_labels))
    assert code(both(batch, reference, same_places, STEP, frozenset())[0]) == "data.labels"
    for lost in ("labels", "input_ids"):
        found = both(batch, reference, side(*draw((1, 3), (2, 5)), field(lost, None)), STEP, frozenset())
        assert [code(each) for each in found] == ["tokenization"] * 2
    lost_labels = side(*draw((1, 2), (2, 5)), field("labels", labels), field("labels", None))
    found = both(batch, reference, lost_labels, STEP, frozenset())
    assert [code(each) for each in found] == ["data.labels"] * 2
