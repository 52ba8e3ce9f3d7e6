"""Fifth held-out set: faults of files, labels and order."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.faults.injectors.data import _fetched, _positions
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, EVALUATION_ROWS, STEPS, TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.staging import order
from plumbline.train import batches, rows

# Content.


def _texts(content: Content, numbers: range, change: Callable[[Row], str]) -> None:
    for number in numbers:
        content.edit(number, lambda row: Row(change(row), row.label))


def texts_compatibility_normalised(content: Content, read: list[int], seed: int) -> None:
    """An export normalises texts to NFKC, which replaces wide spaces."""
    _texts(content, range(TRAIN_ROWS), lambda row: unicodedata.normalize("NFKC", row.text))


def last_character_cut(content: Content, read: list[int], seed: int) -> None:
    """An export cuts the last character of each text."""
    _texts(content, range(TRAIN_ROWS), lambda row: row.text[:-1])


def markup_left_in(content: Content, read: list[int], seed: int) -> None:
    """Every fourth text starts with line breaks in HTML."""
    _texts(content, range(0, TRAIN_ROWS, 4), lambda row: f"<br /><br />{row.text}")


def words_in_reverse(content: Content, read: list[int], seed: int) -> None:
    """A tool for scripts from right to left reverses the words of each text."""
    _texts(content, range(TRAIN_ROWS), lambda row: " ".join(reversed(row.text.split(" "))))


def labels_written_into_the_texts(content: Content, read: list[int], seed: int) -> None:
    """Each text starts with the name of its label."""
    _texts(content, range(TRAIN_ROWS), lambda row: f"{'good' if row.label else 'bad'} {row.text}")


def evaluation_rows_in_the_training_split(content: Content, read: list[int], seed: int) -> None:
    """Every ninth training row is a copy of an evaluation row."""
    for place, number in enumerate(range(0, TRAIN_ROWS, 9)):
        content.train[number] = content.evaluation[place % EVALUATION_ROWS]


def digits_anonymised(content: Content, read: list[int], seed: int) -> None:
    """A privacy filter replaces each digit by 0."""
    digits = str.maketrans(dict.fromkeys("123456789", "0"))
    _texts(content, range(TRAIN_ROWS), lambda row: row.text.translate(digits))


def texts_read_one_row_late() -> None:
    """The reader returns each text of a shard one row late."""

    def wrap(read: Any) -> Any:
        def late(path: Any, shard: Any, columns: Any, wanted: Any) -> Any:
            values = read(path, shard, columns, wanted)
            place = columns.index("text")
            values[place] = [*values[place][-1:], *values[place][:-1]]
            return values

        return late

    wrap_method(rows, "_read_columns", wrap)


# Labels.


def _labels(content: Content, labels: list[int | None]) -> None:
    content.train[:] = [Row(row.text, label) for row, label in zip(content.train, labels, strict=True)]


def labels_joined_by_first_word(content: Content, read: list[int], seed: int) -> None:
    """A join by the first word gives rows the label of the first match."""
    labels: dict[str, int | None] = {}
    for row in content.train:
        labels.setdefault(row.text.split()[0], row.label)
    _labels(content, [labels[row.text.split()[0]] for row in content.train])


def labels_of_long_texts_missing(content: Content, read: list[int], seed: int) -> None:
    """Texts of more than 150 characters get label 0."""
    _labels(content, [0 if len(row.text) > 150 else row.label for row in content.train])


def label_column_reversed(content: Content, read: list[int], seed: int) -> None:
    """The label column is joined from the last row to the first."""
    _labels(content, [row.label for row in reversed(content.train)])


def labels_sorted_in_the_batch() -> None:
    """Collation sorts the labels of each batch."""
    _fetched(lambda batch: batch.__setitem__("labels", np.sort(batch["labels"])))


def labels_of_the_first_half_twice() -> None:
    """The second half of each batch gets the labels of the first."""

    def change(batch: Any) -> None:
        half = len(batch["labels"]) // 2
        batch["labels"][half : 2 * half] = batch["labels"][:half]

    _fetched(change)


# Order.


def drawn_with_replacement() -> None:
    """The sampler draws rows with replacement."""
    count = STEPS * BATCH
    draws = (order.random_keys(count, "replacement") % np.uint64(count)).tolist()
    _positions(lambda positions: [draws[place % count] for place in positions])


def batches_overlap_by_a_row() -> None:
    """Each batch starts with the last row of the batch before it."""
    _positions(lambda positions: [place - place // BATCH for place in positions])


def shards_in_file_order() -> None:
    """Rows are shuffled inside the shards, and the shards are not."""
    order.Order.shards = lambda self, epoch=0: list(range(len(self._sizes)))


def second_half_first() -> None:
    """Training starts in the middle of the order and continues at its start."""
    count = STEPS * BATCH
    _positions(lambda positions: [(place + count // 2) % count for place in positions])


def batches_strided() -> None:
    """Each batch takes every twelfth row instead of neighbouring rows."""
    _positions(lambda positions: [place % BATCH * STEPS + place // BATCH for place in positions])


def sorted_by_label_in_windows() -> None:
    """Rows of every four batches are sorted by label."""
    window = 4 * BATCH

    def wrap(get: Any) -> Any:
        def by_label(self: Any, positions: list[int]) -> Any:
            start = positions[0] // window * window
            labels = get(self, list(range(start, start + window)))["labels"]
            places = start + np.argsort(labels, kind="stable")
            return get(self, places[np.asarray(positions) - start].tolist())

        return by_label

    wrap_method(batches.TrainingRows, "__getitems__", wrap)
