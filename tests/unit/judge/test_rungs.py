"""Rungs before the computation: data, batches, model, generators; and the evaluation and the learning curve after."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plumbline.digest import digest_array, digest_json
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.between_steps import between_steps
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.dropout import drew_differently, operator_of
from plumbline.judge.rungs.evaluation import distance, evaluation, evaluation_numbers
from plumbline.judge.rungs.learning import evaluating, first_logged_difference, learning
from plumbline.judge.rungs.model import architecture, other_modules, restructured, weights
from plumbline.judge.rungs.rng import rng, rng_differs
from plumbline.judge.rungs.selfcheck import failed_at, selfcheck
from plumbline.judge.rungs.tokenizer import tokenizer
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.record import RunRecord

from .conftest import BATCH, EVALUATION_ROWS, LABELS, LENGTH, ROWS, STEPS, make_record
from .kept_verdicts import keep

Content = dict[str, Any]
Change = Callable[[Content], None]
STEP = 3


@functools.cache
def _trained(key: str) -> LoadedRecord:
    return make_record(**_plans[key])


_plans: dict[str, Content] = {}


def side(*changes: Change, **plan: Any) -> LoadedRecord:
    """Return the record of a plan, changed afterwards."""
    _plans[repr(plan)] = plan
    made = _trained(repr(plan))
    content = made.record.model_dump() | {"arrays": copy.deepcopy(made.arrays)}
    for change in changes:
        change(content)
    arrays = content.pop("arrays")
    return LoadedRecord(RunRecord.model_validate(content), made.folder, arrays)


def both(rung: Callable[..., Any], left: LoadedRecord, right: LoadedRecord, *arguments: Any) -> tuple[Any, Any]:
    """Return the rung's results with each side as the reference, held to the kept ones."""
    pairs = Pair(left, right), Pair(right, left)
    return keep(rung(pairs[0], *arguments)), keep(rung(pairs[1], *arguments))


def why(mismatch: Mismatch | None) -> str:
    assert mismatch is not None
    return mismatch.suspicions[0].why


def code(mismatch: Mismatch | None) -> str:
    assert mismatch is not None
    return mismatch.suspicions[0].code


def masked(content: Content) -> None:
    content["spec"]["task"] = "masked-lm"


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
        content["evidence"]["probe"]["steps"][step]["batch"][name] = digest_array(np.asarray(value))

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
    more = side(lambda c: c["evidence"]["probe"]["steps"][STEP]["batch"].update(position_ids="e" * 64))
    found, _ = both(batch, plain, more, STEP, frozenset())
    assert found.at.at == "position_ids"


def test_padding_is_named_by_both_shapes() -> None:
    wide = np.ones((BATCH, LENGTH + 3), np.int64)
    found, other = both(batch, side(), side(field("attention_mask", wide)), STEP, frozenset())
    assert why(found) == "the same rows, padded to (4, 11) instead of (4, 8)"
    assert why(other) == "the same rows, padded to (4, 8) instead of (4, 11)"
    assert found.at.at == "attention_mask of batch row 0"


def test_the_order_of_a_batch_is_described_by_what_became_of_its_rows() -> None:
    plain, rows = side(), [12, 13, 14, 15]

    def became(*other: int) -> tuple[Mismatch, Mismatch]:
        return both(batch, plain, side(field("row_ids", np.array(other))), STEP, frozenset())

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


# The dataset.


def texts(changes: dict[int, int], count: int = ROWS + EVALUATION_ROWS) -> list[int]:
    return [changes.get(row, 1000 + row) for row in range(count)]


def test_rows_that_differ_are_counted_named_and_placed() -> None:
    plain = side()
    five, six = ({row: 5000 + row for row in rows} for rows in ((9, 11, 12, 17, 18), (9, 11, 12, 17, 18, 20)))
    (found,), _ = both(data, plain, side(texts=texts(five)))
    assert found.findings[0].detail == "first at shard train/1.parquet row 1; 5 of 30 rows differ: 9, 11, 12, 17, 18"
    assert (found.at.step, found.at.row, code(found)) == (2, 9, "data.content")
    (found,), _ = both(data, plain, side(texts=texts(six)))
    assert found.findings[0].detail.endswith("6 of 30 rows differ: 9, 11, 12, 17, 18, …")
    (found,), _ = both(data, plain, side(texts=texts({9: 5009})))
    assert why(found) == "the dataset contains different rows: 1 row differs"
    labels = [(row + (row in (8, 13))) % LABELS for row in range(ROWS + EVALUATION_ROWS)]
    (found,), _ = both(data, plain, side(labels=labels))
    assert (found.at.at, code(found)) == ("shard train/1.parquet row 0", "data.labels")
    (found,), _ = both(data, plain, side(labels=labels, texts=texts({13: 4})))
    assert (found.findings[0].observed, code(found)) == (pytest.approx(2 / 30), "data.content")
    # Rows that only the evaluation reads.
    (found,), _ = both(data, plain, side(texts=texts({25: 4, 27: 4})))
    assert (found.at.step, found.at.row, found.at.at) == (None, 25, "shard train/3.parquet row 1")
    # The order of reading decides which row comes first.
    order = list(range(ROWS))[::-1]
    (found,), _ = both(data, side(order=order), side(order=order, texts=texts(five)))
    assert (found.at.step, found.at.row) == (1, 18)

    def without_batches(content: Content) -> None:
        del content["arrays"]["batches"]["row_ids"]

    (found,), _ = both(data, plain, side(without_batches, texts=texts(five)))
    assert (found.at.step, found.at.row) == (None, 9)


def test_rows_in_different_places_are_an_order_and_shards_alone_may_show_it() -> None:
    swapped = texts({9: 1012, 12: 1009})
    (found,), _ = both(data, side(), side(texts=swapped, labels=[0] * 30))
    assert code(found) == "data.content"  # their labels differ too
    (found,), _ = both(data, side(labels=[0] * 30), side(texts=swapped, labels=[0] * 30))
    assert code(found) == "data.order"
    (found,), _ = both(data, side(labels=[0] * 30), side(texts=texts({9: 1012, 12: 77}), labels=[0] * 30))
    assert code(found) == "data.content"
    shards = [1000 + row for row in (*range(8, 16), *range(8), *range(16, 30))]
    (found,), _ = both(data, side(), side(texts=shards))
    assert code(found) == "data.order"
    # One list of shards, and different rows: the rows were edited after the manifest was written.
    edited = side(texts=shards)
    manifest = side().record.evidence.data
    assert manifest is not None

    def same_manifest(content: Content) -> None:
        content["evidence"]["data"] |= {"shards": manifest.shards, "manifest_sha256": manifest.manifest_sha256}

    found, _ = both(data, side(), side(same_manifest, texts=shards))
    assert [code(each) for each in found] == ["data.order"]
    assert edited.record.evidence.data is not None


READ = 30
"""Rows that a training of the tests reads: 24 rows of batches and 6 rows of an evaluation."""


@pytest.mark.parametrize(
    ("total", "known", "relabelled", "copies", "named"),
    [
        (150, 3, 0, 0, "data.order"), (150, 2, 0, 0, "data.content"),  # half of the 6 rows expected
        (225, 2, 0, 0, "data.order"), (226, 2, 0, 0, "data.content"),  # at least 4 rows expected
        (225, 1, 0, 0, "data.content"),
        (150, 10, 1, 0, "data.order"), (150, 10, 2, 0, "data.content"),  # the labels go with nine tenths of the texts
        (150, 4, 0, 1, "data.order"), (150, 4, 0, 2, "data.content"),  # a quarter of copies
    ],
)  # fmt: skip
def test_a_part_of_a_permuted_dataset_is_an_order(
    total: int, known: int, relabelled: int, copies: int, named: str
) -> None:
    def rows(values: list[int], marks: list[int]) -> Change:
        """Count more rows in the dataset than the record contains, and give those read different contents."""

        def change(content: Content) -> None:
            content["arrays"]["rows"] |= {"text": np.array(values, np.uint64), "label": np.array(marks, np.uint64)}
            shard = content["evidence"]["data"]["shards"][0]
            content["evidence"]["data"] |= {
                "shards": [shard | {"num_rows": total, "sha256": digest_json(values)}],
                "manifest_sha256": digest_json(values),
            }

        return change

    own = list(range(1000, 1000 + READ))
    marks = [row % 2 for row in range(READ)]
    # The rows known move by one; all others are new.
    theirs = [1000 + (row + 2) % READ if row < known else 5000 + row for row in range(READ)]
    their_marks = [1 - mark if row < relabelled else mark for row, mark in enumerate(marks)]
    for copy_of in range(copies):
        theirs[-1 - copy_of], their_marks[-1 - copy_of] = 5010, 0
    reference, candidate = side(rows(own, marks)), side(rows(theirs, their_marks))
    assert [code(each) for each in keep(data(Pair(reference, candidate)))] == [named]


def test_a_dataset_that_differs_in_rows_not_read_is_said_to() -> None:
    longer = side(texts=texts({}, 40), labels=[row % LABELS for row in range(40)], order=list(range(ROWS)))
    shorter = side(texts=texts({}, 35), labels=[row % LABELS for row in range(35)], order=list(range(ROWS)))
    found = [keep(data(Pair(*pair))) for pair in ((longer, shorter), (shorter, longer))]
    assert all(each for each in found)

    def without_rows(content: Content) -> None:
        del content["arrays"]["rows"]

    found_too, _ = both(data, side(), side(without_rows, texts=texts({12: 5})))
    assert why(found_too[0]) == "the dataset differs, in rows that the record does not contain"
    assert found_too[0].at.at == "shard train/1.parquet"
    other, _ = both(data, side(without_rows), side(texts=texts({12: 5})))
    assert why(other[0]) == why(found_too[0])

    def unread(shards: int, *, size: int = 8, mark: str = "e") -> Change:
        def change(content: Content) -> None:
            known = content["evidence"]["data"]["shards"]
            more = [
                known[0] | {"key": f"train/{9 + n}.parquet", "sha256": mark * 64, "num_rows": size}
                for n in range(shards)
            ]
            content["evidence"]["data"] |= {"shards": [*known, *more], "manifest_sha256": mark * 64}

        return change

    found, _ = both(data, side(unread(1)), side(unread(2, mark="f")))
    assert why(found[0]) == "the dataset differs, in rows that this run does not read"
    assert "row_ids" in found[0].suspicions[0].names
    found, _ = both(data, side(unread(2)), side(unread(2, mark="f")))
    assert "row_ids" not in found[0].suspicions[0].names
    # Another manifest of the same shards, or of the same rows in different shards, all of them read.
    renamed = side(lambda c: c["evidence"]["data"].update(manifest_sha256="e" * 64))
    assert both(data, side(), renamed) == ([], [])

    def shards(*sizes: int) -> Change:
        def change(content: Content) -> None:
            known = content["evidence"]["data"]["shards"]
            content["evidence"]["data"] |= {
                "shards": [known[0] | {"num_rows": size} for size in sizes],
                "manifest_sha256": digest_json(sizes), "num_rows": sum(sizes),
            }  # fmt: skip

        return change

    assert both(data, side(), side(shards(30))) == ([], [])
    assert both(data, side(shards(1000)), side(shards(300, 700))) == ([], [])

    def no_shards(content: Content) -> None:
        content["evidence"]["data"] |= {"shards": [], "manifest_sha256": "e" * 64}

    found, other = both(data, side(), side(no_shards))
    assert (found[0].at.at, other[0].at.at) == ("shard ", "shard train/0.parquet")
    nothing = side(lambda c: c["evidence"].update(data=None))
    assert both(data, side(texts=texts({12: 5})), nothing) == ([], [])
    found, _ = both(data, side(no_shards), side(no_shards, texts=texts({12: 5})))
    assert found[0].at.at == "row 12"


# The tokenizer.

FILE = "d" * 64


def with_learn(**changes: Any) -> Change:
    def change(content: Content) -> None:
        content["evidence"]["learn"] = LearnEvidence.model_validate(LEARN | changes).model_dump()

    return change


def log(mark: str, *other: int) -> list[str]:
    """Return a digest for each of six steps, different at the steps of `other`."""
    return [f"{place:x}{('f' if place in other else mark) * 15}" for place in range(STEPS)]


END = {
    "step": 5, "num_rows": 6, "rows_sha256": "a" * 64, "training_mode": False, "predictions_sha256": "b" * 64,
    "logits_sha256": "c" * 64, "loss": 0.5, "accuracy": 0.5,
}  # fmt: skip
LEARN: Content = {
    "steps": STEPS, "losses": [0.7 - 0.01 * step for step in range(STEPS)], "weights_sha256": "a" * 64,
    "evaluations": [END | {"step": 2}, END], "learning_rates": [1e-3 + 1e-4 * step for step in range(STEPS)],
    "batches": log("a"), "rows": log("b"), "labels": log("c"), "start_sha256": "b" * 64, "dropout": [0.1, 0.25],
}  # fmt: skip


def test_a_rewritten_tokenizer_is_a_mismatch_where_the_tokens_differ() -> None:
    plain = side()
    assert both(tokenizer, plain, plain) == (None, None)
    assert both(tokenizer, plain, side(tokenizer=FILE)) == (None, None)
    found, other = both(tokenizer, plain, side(tokenizer=FILE, ids_shift=1))
    assert found.suspicions[0].evidence == ("tokenizer dddddddddddd", "the tokens differ in the probe's batches")
    assert other.suspicions[0].evidence[0] == "tokenizer aaaaaaaaaaaa"
    nothing = side(lambda c: c["evidence"].update(data=None))
    assert both(tokenizer, nothing, side(tokenizer=FILE, ids_shift=1)) == (None, None)


def test_tokens_are_compared_row_by_row_where_the_order_differs_unless_a_mask_hides_them() -> None:
    reverse = {"tokenizer": FILE, "order": list(range(ROWS))[::-1]}
    assert both(tokenizer, side(), side(**reverse)) == (None, None)
    assert both(tokenizer, side(), side(**reverse, ids_shift=1))[0] is not None
    # Edited rows are left out, also where a row of them moved.
    assert both(tokenizer, side(), side(**reverse, texts=texts({9: 3, 20: 4}))) == (None, None)
    assert both(tokenizer, side(masked), side(masked, **reverse))[0] is not None
    for name in ("row_ids", "attention_mask"):
        lost = side(lambda c, name=name: c["arrays"]["batches"].pop(name), **reverse)  # type: ignore[misc]
        assert both(tokenizer, side(), lost)[0] is not None
    no_rows = side(lambda c: c["arrays"].pop("rows"), **reverse, texts=texts({9: 3}))
    assert all(found is not None for found in both(tokenizer, side(), no_rows))


def test_tokens_of_the_evaluation_differ_where_the_training_does_not() -> None:
    def logits(mark: str = "f", factor: float = 2.0, **changes: Any) -> Change:
        def change(content: Content) -> None:
            probe = content["evidence"]["probe"]
            probe["evaluation"] |= {"logits_sha256": mark * 64} | changes
            content["arrays"]["evaluation"]["logits"] = content["arrays"]["evaluation"]["logits"] * factor

        return change

    def rounded(content: Content) -> None:
        for step in content["evidence"]["probe"]["steps"]:
            step |= {"loss": step["loss"] * (1 + 1e-8), "weights_sha256": "e" * 64}

    def apart(content: Content) -> None:
        step = content["evidence"]["probe"]["steps"][-2]
        content["evidence"]["probe"]["steps"][-1]["weights_sha256"] = "e" * 64
        step["loss"] *= 1.01

    plain = side()
    found, _ = both(tokenizer, plain, side(logits(), tokenizer=FILE))
    assert found.findings[0].detail == "the tokens differ in the rows of the evaluation"
    assert both(tokenizer, plain, side(logits(rows_sha256="e" * 64), tokenizer=FILE)) == (None, None)
    assert both(tokenizer, plain, side(logits(training_mode=True), tokenizer=FILE)) == (None, None)
    assert both(tokenizer, plain, side(logits(), rounded, tokenizer=FILE))[0] is not None
    # A small difference after rounding is rounding, after equal weights it is not.
    assert both(tokenizer, plain, side(logits(factor=1 + 1e-7), rounded, tokenizer=FILE)) == (None, None)
    assert both(tokenizer, plain, side(logits(factor=1 + 1e-7), tokenizer=FILE))[0] is not None
    assert both(tokenizer, plain, side(logits(), apart, tokenizer=FILE)) == (None, None)
    lost = side(lambda c: c["evidence"]["probe"].update(evaluation=None), tokenizer=FILE)
    assert both(tokenizer, plain, lost) == (None, None)
    no_probe = side(lambda c: c["evidence"].update(probe=None), tokenizer=FILE)
    assert both(tokenizer, plain, no_probe) == (None, None)
    assert tokenizer(Pair(plain, side(logits(), tokenizer=FILE), imposed=frozenset({"evaluation"}))) is None


def test_tokens_of_a_learning_curve_are_compared_by_its_batches_or_its_losses() -> None:
    plain = side(with_learn())
    assert both(tokenizer, plain, side(with_learn(), tokenizer=FILE)) == (None, None)
    found, _ = both(tokenizer, plain, side(with_learn(batches=log("a", 3)), tokenizer=FILE))
    assert found.findings[0].detail == "the tokens differ in the rows of the learning curve"
    losses = [*LEARN["losses"][:-1], 0.1]
    assert both(tokenizer, plain, side(with_learn(losses=losses), tokenizer=FILE)) == (None, None)
    assert both(tokenizer, plain, side(with_learn(losses=losses, batches=[]), tokenizer=FILE))[0] is not None
    assert both(tokenizer, plain, side(with_learn(batches=[]), tokenizer=FILE)) == (None, None)
    assert both(tokenizer, plain, side(tokenizer=FILE)) == (None, None)


# The model.


def parameters(**changes: Content | None) -> Change:
    """Change parameters by name (`_` for `.`): `None` removes, an unknown name adds."""

    def change(content: Content) -> None:
        model = content["evidence"]["model"]
        given = {name.replace("_", "."): value for name, value in changes.items()}
        known = {each["name"]: each for each in model["parameters"]}
        first = model["parameters"][0]
        known |= {name: known.get(name, first | {"name": name}) | (value or {}) for name, value in given.items()}
        model["parameters"] = [each for name, each in known.items() if given.get(name, {}) is not None]
        model["weights_sha256"] = digest_json([str(each) for each in model["parameters"]])

    return change


def test_parameters_that_differ_by_name_shape_or_tie_are_named_in_order() -> None:
    plain = side()
    assert both(architecture, plain, plain) == (None, None)
    found, other = both(architecture, plain, side(parameters(head_weight=None)))
    assert found.findings[0].detail == "head.weight is missing"
    assert other.findings[0].detail == "head.weight is additional"
    found, other = both(architecture, plain, side(parameters(layer_linear_weight={"shape": (16, 17)})))
    assert found.findings[0].detail == "layer.linear.weight is [16, 17] instead of [16, 16]"
    tied = side(parameters(head_weight={"tied_to": "embed.weight"}))
    found, other = both(architecture, plain, tied)
    assert found.findings[0].detail == "head.weight is tied to embed.weight, not nothing"
    assert other.findings[0].detail == "head.weight is tied to nothing, not embed.weight"
    assert restructured(Pair(plain, tied)) == restructured(Pair(tied, plain)) == {"head.weight", "embed.weight"}
    assert both(restructured, tied, tied) == (frozenset(), frozenset())
    many = side(
        parameters(head_weight=None, embed_weight={"shape": (3, 16)}, a=None, b={}, c={}, d={}),
        lambda c: c["evidence"]["model"].update(modules=[("embed", "Other()"), ("x", "X()")]),
    )
    found, _ = both(architecture, plain, many)
    assert found.findings[0].observed == 5
    assert found.findings[0].detail.count(";") == 3
    nothing = side(lambda c: c["evidence"].update(model=None))
    for rung in (architecture, weights):
        assert both(rung, nothing, many) == (None, None)
    assert both(restructured, nothing, many) == (frozenset(), frozenset())


def test_modules_are_listed_by_what_differs() -> None:
    models = [side(modules=modules).record.evidence.model for modules in ({}, {"layer.norm": "LayerNorm(eps=1e-05)"})]
    left, right = models
    assert left is not None
    assert right is not None
    assert other_modules(left, right) == [("layer.norm", "layer.norm: LayerNorm() → LayerNorm(eps=1e-05)")]
    fewer = right.replace(modules=right.modules[:1] + right.modules[2:])
    assert keep(other_modules(left, fewer)) == [
        ("layer.norm", "layer.norm: LayerNorm() → LayerNorm(eps=1e-05)"),
        ("layer.linear", "module layer.linear is missing"),
    ]
    assert keep(other_modules(fewer, left))[1] == ("layer.linear", "module layer.linear is additional")


def test_initial_values_are_counted_over_equally_named_and_shaped_parameters() -> None:
    plain, changed = side(), {"sha256": "e" * 64}
    found, _ = both(weights, plain, side(parameters(layer_linear_weight=changed, head_weight=changed)))
    assert why(found) == "2 of 3 parameters start from different values"
    assert found.at.at == "layer.linear.weight"
    # A format comes before values; a different shape is the architecture's.
    typed = changed | {"dtype": "bfloat16"}
    found, other = both(weights, plain, side(parameters(embed_weight=changed, head_weight=typed)))
    assert (why(found), code(found)) == ("parameters are stored in bfloat16 instead of float32", "precision")
    assert why(other) == "parameters are stored in float32 instead of bfloat16"
    assert found.suspicions[0].evidence == ("1 of 3 parameters",)
    shaped = parameters(embed_weight=changed | {"shape": (2, 3)}, layer_linear_weight=changed)
    found, _ = both(weights, plain, side(shaped))
    assert why(found) == "1 of 2 parameters start from different values"
    assert both(weights, plain, side(parameters(head_weight=None))) == (None, None)


# The generators.


def generators(step: int, **states: str) -> Change:
    return lambda content: content["evidence"]["probe"]["steps"][step].update(
        rng={name: mark * 64 for name, mark in states.items()}
    )


@pytest.mark.parametrize("step", [0, 1, 4])
def test_generators_are_named_with_the_step_that_changed_them(step: int) -> None:
    plain = side(generators(step, python="a", numpy="b", torch="c", cuda="d"))
    assert both(rng, plain, plain, step) == (None, None)
    found, _ = both(rng, plain, side(generators(step, python="a", numpy="f", torch="e")), step)
    since = "from the start: a different seed" if step == 0 else f"since step {step - 1}: different random draws there"
    assert why(found) == f"the state of numpy, torch differs {since}"
    assert found.independent is (step == 0)
    assert rng_differs(Pair(plain, side(generators(step, extra="a"))), step) == ()


# The evaluation.


def evaluated(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["evaluation"].update(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_rows": 5}, {"num_rows": 5, "training_mode": True}, {"training_mode": True, "rows_sha256": "e" * 64},
        {"rows_sha256": "e" * 64}, {},
    ],
)  # fmt: skip
def test_an_evaluation_of_different_rows_or_in_a_different_mode_is_a_cause_of_its_own(changes: Content) -> None:
    found, other = both(evaluation, side(), side(evaluated(**changes)))
    assert (found is None) is (other is None) is (not changes)
    assert found is None or found.independent


def test_an_evaluation_that_a_record_lacks_is_not_compared() -> None:
    other = side(evaluated(num_rows=5, loss=0.1))
    for lost in (
        side(lambda c: c["evidence"]["probe"].update(evaluation=None)),
        side(lambda c: c["evidence"].update(probe=None)),
    ):
        assert both(evaluation, lost, other) == both(evaluation_numbers, lost, other) == (None, None)


@pytest.mark.parametrize(
    ("changes", "metric"),
    [
        ({"loss": 0.1}, "loss"), ({"loss": None}, "loss"), ({"accuracy": 0.4}, "accuracy"),
        ({"loss": 0.1, "accuracy": 0.1}, "loss"), ({"accuracy": None}, "accuracy"), ({"accuracy": 0.0}, "accuracy"),
        ({"accuracy": 0.5 * (1 + 4.7e-6)}, ""), ({"accuracy": 0.5 * (1 + 4.9e-6)}, "accuracy"), ({}, ""),
    ],
)  # fmt: skip
def test_equal_logits_give_equal_numbers(changes: Content, metric: str) -> None:
    found, _ = both(evaluation_numbers, side(), side(evaluated(**changes)))
    assert (found.at.at if found else "") == metric
    assert found is None or not found.independent


def test_logits_are_compared_by_their_relative_distance() -> None:
    def logits(change: Callable[[Any], Any], *, lost: bool = False) -> LoadedRecord:
        def edit(content: Content) -> None:
            arrays = content["arrays"]["evaluation"]
            arrays["logits"] = change(arrays["logits"])
            content["evidence"]["probe"]["evaluation"]["logits_sha256"] = "e" * 64
            if lost:
                del arrays["logits"]

        return side(edit)

    plain = side()
    far = logits(lambda values: values * 1.5)
    found, _ = both(evaluation_numbers, plain, far)
    assert found.findings[0].observed == pytest.approx(0.5)
    assert distance(plain, far) == pytest.approx(0.5)
    assert distance(far, plain) == pytest.approx(1 / 3)
    assert distance(logits(lambda values: values * 0), plain) == float("inf")
    assert distance(plain, logits(lambda values: values * 0)) == pytest.approx(1.0)
    for changed in (
        logits(lambda values: values[:, 1:]),
        logits(lambda values: values * np.nan),
        logits(lambda values: values, lost=True),
    ):
        assert distance(plain, changed) == distance(changed, plain) == float("inf")
        found, _ = both(evaluation_numbers, plain, changed)
        assert found.findings[0].observed is None
    # The limit grows with the steps before the evaluation.
    limit = 400 * 2.0**-23 * 2.0 ** (STEPS / 9)
    for share, differs in ((0.99, False), (1.01, True)):
        near = logits(lambda values, share=share: values.astype(np.float64) * (1 + share * limit))  # type: ignore[misc]
        assert (evaluation_numbers(Pair(plain, near)) is not None) is differs


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
    assert operator_of(Pair(plain, other_input), STEP, tap) == "LayerNorm layer.norm, in its operations before drop,"
    aside = tap.replace(name="x.y.drop")
    pair = Pair(*(traced(draws=[drop(STEP, "x.y.drop", mark, "b")]) for mark in "ab"))
    assert operator_of(pair, STEP, aside) == "module x.y, in its operations before drop,"
    # A dropout that only one side calls belongs to the module around it.
    assert both(drew_differently, plain, fewer, STEP, "layer.norm", "LayerNorm") == (True, True)
    assert both(drew_differently, plain, fewer, STEP, "layer", "Layer") == (True, True)
    assert both(drew_differently, plain, fewer, STEP, "layer.no", "Layer") == (False, False)
    assert both(drew_differently, plain, fewer, 2, "layer.norm", "LayerNorm") == (False, False)
    # Without traces the class alone shows a dropout.
    for pair in (Pair(side(), side()), Pair(side(), plain), Pair(plain, side())):
        assert drew_differently(pair, STEP, name, "StableDropout")
        assert not drew_differently(pair, STEP, "layer.norm", "LayerNorm")


# The shipped training.


def test_only_the_candidates_failed_selfcheck_names_its_machine() -> None:
    def checked(verdict: str, at: str) -> LoadedRecord:
        return side(lambda c: c["evidence"].update(selfcheck={"verdict": verdict, "at": at}))

    failed, passed, unknown = checked("drift", "loss of step 0"), checked("pass", ""), checked("unknown", "x")
    assert [failed_at(each) for each in (failed, passed, unknown, side())] == ["loss of step 0", None, None, None]
    found = keep(selfcheck(passed, failed))
    assert found is not None
    assert found[1].sure == "confirmed"
    assert selfcheck(failed, passed) is selfcheck(failed, failed) is selfcheck(side(), unknown) is None
