"""Rung of the dataset: different rows, a different order, and unread rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.data import data
from plumbline.schema.digest import digest_json
from tests.said import said

from .conftest import EVALUATION_ROWS, LABELS, ROWS
from .rung_records import Change, Content, both, code, side, why

# The dataset.


def texts(changes: dict[int, int], count: int = ROWS + EVALUATION_ROWS) -> list[int]:
    return [changes.get(row, 1000 + row) for row in range(count)]


def test_rows_that_differ_are_counted_named_and_placed() -> None:
    plain = side()
    five, six = ({row: 5000 + row for row in rows} for rows in ((9, 11, 12, 17, 18), (9, 11, 12, 17, 18, 20)))
    (found,), _ = both(data, plain, side(texts=texts(five)))
    assert (
        said(found.findings[0].detail) == "first at shard train/1.parquet row 1; 5 of 30 rows differ: 9, 11, 12, 17, 18"
    )
    assert (found.at.step, found.at.row, code(found)) == (2, 9, "data.content")
    (found,), _ = both(data, plain, side(texts=texts(six)))
    assert said(found.findings[0].detail).endswith("6 of 30 rows differ: 9, 11, 12, 17, 18, …")
    (found,), _ = both(data, plain, side(texts=texts({9: 9})))
    assert why(found) == "the dataset contains different rows: 1 row differs"
    labels = [(row + (row in (8, 13))) % LABELS for row in range(ROWS + EVALUATION_ROWS)]
    (found,), _ = both(data, plain, side(labels=labels))
    assert (found.at.at, code(found)) == ("shard train/1.parquet row 0", "data.labels")
    (found,), _ = both(data, plain, side(labels=labels, texts=texts({13: 4})))
    assert (found.findings[0].observed, code(found)) == (pytest.approx(2 / 30), "data.content")
    # Rows that only the evaluation reads.
    (found,), _ = both(data, plain, side(texts=texts({25: 4, 27: 4})))
    assert (found.at.step, found.at.row, found.at.at) == (None, 25, "shard evaluation/3.parquet row 1")
    # The order of reading decides which row comes first.
    order = list(range(ROWS))[::-1]
    (found,), _ = both(data, side(order=order), side(order=order, texts=texts(five)))
    assert (found.at.step, found.at.row) == (1, 18)

    def without_batches(content: Content) -> None:
        del content["arrays"]["batches"]["row_ids"]

    (found,), _ = both(data, plain, side(without_batches, texts=texts(five)))
    assert (found.at.step, found.at.row) == (None, 9)


def test_different_imports_are_named_beside_different_rows_and_beside_equal_ones() -> None:
    def imported(lines: int, **keys: Any) -> Change:
        receipt = {"files": 1, "lines": lines, "rows": lines - 1, "read_as": ["quotes enclose texts"], **keys}

        def change(content: Content) -> None:
            content["evidence"]["data"] |= {"receipt": receipt, "manifest_sha256": f"{lines:064}"}

        return change

    texts_differ = side(imported(398), texts=texts({9: 5009}))
    (found,) = data(Pair(side(imported(401, read_as=["quotes belong to the text"])), texts_differ))
    assert said(found.suspicions[0].evidence)[2:] == (
        "import: 398 lines read instead of 401",
        "import: 397 rows read instead of 400",
        "import: quotes enclose texts instead of quotes belong to the text",
    )
    assert data(Pair(side(), texts_differ))[0].suspicions[0].evidence[2:] == ()
    judgement = compare(side(imported(401)), side(imported(402)))
    (text,) = [said(note.text) for note in judgement.notes if note.code == "manifest"]
    assert text.startswith("the manifests differ, but every row is the same; import: 402 lines read instead of 401;")


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
    manifest = side().record.evidence.data
    assert manifest is not None

    def same_manifest(content: Content) -> None:
        content["evidence"]["data"] |= {"shards": manifest.shards, "manifest_sha256": manifest.manifest_sha256}

    for found in both(data, side(), side(same_manifest, texts=shards)):
        assert [code(each) for each in found] == ["data.order"]


READ = 30
"""Rows that a training of the tests reads: 24 rows of batches and 6 rows of an evaluation."""


@pytest.mark.parametrize(
    ("total", "known", "relabelled", "copies", "named"),
    [
        (150, 3, 0, (0, 0), "data.order"), (150, 2, 0, (0, 0), "data.content"),  # half of the 6 rows expected
        (225, 2, 0, (0, 0), "data.order"), (226, 2, 0, (0, 0), "data.content"),  # at least 4 rows expected
        (225, 1, 0, (0, 0), "data.content"),
        # The labels go with nine tenths of the texts.
        (150, 10, 1, (0, 0), "data.order"), (150, 10, 2, (0, 0), "data.content"),
        # A quarter of copies, more than the reference has.
        (150, 4, 0, (0, 1), "data.order"), (150, 4, 0, (0, 2), "data.content"),
        (150, 4, 0, (1, 2), "data.order"), (150, 4, 0, (1, 3), "data.content"),
    ],
)  # fmt: skip
def test_a_part_of_a_permuted_dataset_is_an_order(
    total: int, known: int, relabelled: int, copies: tuple[int, int], named: str
) -> None:
    def rows(values: list[int], marks: list[int]) -> Change:
        """Count more rows in the dataset than the record contains, and give those read different contents."""

        def change(content: Content) -> None:
            content["arrays"]["rows"] |= {"text": np.array(values, np.uint64), "label": np.array(marks, np.uint64)}
            shard = content["evidence"]["data"]["shards"][0]
            content["evidence"]["data"] |= {
                "shards": [shard | {"num_rows": total, "rows_sha256": digest_json(values)}],
                "manifest_sha256": digest_json(values),
            }

        return change

    own = list(range(1000, 1000 + READ))
    marks = [row % 2 for row in range(READ)]
    # The rows known move by one; all others are new.
    theirs = [1000 + (row + 2) % READ if row < known else 5000 + row for row in range(READ)]
    their_marks = [1 - mark if row < relabelled else mark for row, mark in enumerate(marks)]
    for place in range(copies[0]):
        own[-1 - place], marks[-1 - place] = 1020, 0
    for place in range(copies[1]):
        theirs[-1 - place], their_marks[-1 - place] = 5010, 0
    reference, candidate = side(rows(own, marks)), side(rows(theirs, their_marks))
    assert [code(each) for each in data(Pair(reference, candidate))] == [named]


def test_a_dataset_that_differs_in_rows_not_read_is_said_to() -> None:
    longer = side(texts=texts({}, 40), labels=[row % LABELS for row in range(40)], order=list(range(ROWS)))
    shorter = side(texts=texts({}, 35), labels=[row % LABELS for row in range(35)], order=list(range(ROWS)))
    found = [data(Pair(*pair)) for pair in ((longer, shorter), (shorter, longer))]
    assert all(each for each in found)

    def without_rows(content: Content) -> None:
        del content["arrays"]["rows"]

    found_too, _ = both(data, side(), side(without_rows, texts=texts({12: 5})))
    assert why(found_too[0]) == "the dataset differs, in rows that the record does not contain"
    assert found_too[0].at.at == "shard train/1.parquet"
    other, _ = both(data, side(without_rows), side(texts=texts({12: 5})))
    assert why(other[0]) == why(found_too[0])

    def unread(shards: int, *, size: int = 8, mark: str = "e", rows: str | None = None) -> Change:
        def change(content: Content) -> None:
            known = content["evidence"]["data"]["shards"]
            more = [
                {**known[0], "key": f"train/{9 + n}.parquet", "num_rows": size, "rows_sha256": rows or mark * 64}
                | {"sha256": mark * 64}
                for n in range(shards)
            ]
            content["evidence"]["data"] |= {"shards": [*known, *more], "manifest_sha256": mark * 64}

        return change

    found, _ = both(data, side(unread(1)), side(unread(2, mark="f")))
    assert why(found[0]) == "the dataset differs, in rows that this run does not read"
    assert "row_ids" in found[0].suspicions[0].names
    found, _ = both(data, side(unread(2)), side(unread(2, mark="f")))
    assert "row_ids" not in found[0].suspicions[0].names
    # As many rows in shards of a different size: nothing shows that they differ.
    found, _ = both(data, side(unread(2)), side(unread(1, size=16, mark="f")))
    assert why(found[0]).startswith("the shards divide the dataset differently: nothing shows whether it differs in")
    # The batches say more: these rows are read in a different order.
    swapped = list(range(ROWS))[::-1]
    found, _ = both(data, side(unread(2)), side(unread(1, size=16, mark="f"), order=swapped))
    assert found == []
    # The same rows in other files, known by the digest of rows.
    same, others = (side(unread(2, mark=mark, rows="a" * 64)) for mark in "ef")
    assert both(data, same, others) == ([], [])
    found, _ = both(data, same, side(unread(2, mark="f", rows="b" * 64)))
    assert (code(found[0]), found[0].at.at) == ("data.content", "shard train/9.parquet")
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
    assert found[0].at.at == other[0].at.at == "shard train/0.parquet"
    nothing = side(lambda c: c["evidence"].update(data=None))
    assert both(data, side(texts=texts({12: 5})), nothing) == ([], [])
    found, _ = both(data, side(no_shards), side(no_shards, texts=texts({12: 5})))
    assert found[0].at.at == "row 12"
