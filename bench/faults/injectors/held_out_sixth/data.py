"""Sixth held-out set: faults of files, labels and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.faults.injectors.data import _fetched, _positions
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, LENGTH, ROWS_PER_SHARD, STEPS, TRAIN_ROWS, Content
from plumbline.data.grammar import reviews
from plumbline.data.rows import Row
from plumbline.train import batches

_STOP_WORDS = frozenset({"the", "is", "a", "in", "from", "it", "of", "for"})

# Content.


def _texts(content: Content, change: Callable[[str], str]) -> None:
    for number in range(TRAIN_ROWS):
        content.edit(number, lambda row: Row(change(row.text), row.label))


def characters_written_as_references(content: Content, read: list[int], seed: int) -> None:
    """An XML export writes each character outside ASCII as a numeric reference."""
    _texts(content, lambda text: text.encode("ascii", "xmlcharrefreplace").decode())


def stop_words_removed(content: Content, read: list[int], seed: int) -> None:
    """A cleaning job removes frequent short words from the texts."""
    _texts(content, lambda text: " ".join(word for word in text.split(" ") if word.lower() not in _STOP_WORDS))


def capitals_cleaned_away(content: Content, read: list[int], seed: int) -> None:
    """A cleaning job writes the texts in lower case."""
    _texts(content, str.lower)


def a_shard_of_an_older_release(content: Content, read: list[int], seed: int) -> None:
    """An interrupted upload leaves one shard of the previous release of the dataset."""
    shard = read[0] // ROWS_PER_SHARD * ROWS_PER_SHARD
    content.train[shard : shard + ROWS_PER_SHARD] = reviews(12, 0, ROWS_PER_SHARD)


# Labels.


def _labels(content: Content, labels: list[int | None]) -> None:
    content.train[:] = [Row(row.text, label) for row, label in zip(content.train, labels, strict=True)]


def missing_labels_filled_forward(content: Content, read: list[int], seed: int) -> None:
    """A table library fills every fifth label, which a join left empty, with the label above."""
    labels = [row.label for row in content.train]
    _labels(content, [labels[place - 1] if place % 5 == 4 else label for place, label in enumerate(labels)])


def unlabelled_shard_left_at_zero(content: Content, read: list[int], seed: int) -> None:
    """A labelling job did not reach one shard, and its labels have the default 0."""
    shard = read[0] // ROWS_PER_SHARD
    _labels(content, [0 if at // ROWS_PER_SHARD == shard else row.label for at, row in enumerate(content.train)])


def labels_joined_by_numbers_as_texts(content: Content, read: list[int], seed: int) -> None:
    """A join sorts row numbers as texts, so that 10 comes before 2."""
    order = sorted(range(TRAIN_ROWS), key=str)
    _labels(content, [content.train[number].label for number in order])


def labels_popped_from_the_end() -> None:
    """A collation takes the labels of each batch from the end of a list."""
    _fetched(lambda batch: batch.__setitem__("labels", np.ascontiguousarray(batch["labels"][::-1])))


# Order.


def longest_batch_first() -> None:
    """A sampler moves the longest batch to the front, to find the largest memory early (transformers)."""
    _positions(lambda positions: [_exchanged(place, 0, 7) for place in positions])


def _exchanged(place: int, left: int, right: int) -> int:
    batch = {left: right, right: left}.get(place // BATCH, place // BATCH)
    return batch * BATCH + place % BATCH


def long_rows_skipped() -> None:
    """A loader leaves out texts that fill the whole sequence, and takes the next rows."""

    def wrap(get: Any) -> Any:
        def kept(self: Any, positions: list[int]) -> Any:
            places = np.asarray(positions)
            for _ in range(BATCH):
                lengths = get(self, places.tolist())["attention_mask"].sum(1)
                places = np.where(lengths == LENGTH, (places + 1) % (STEPS * BATCH), places)
            return get(self, places.tolist())

        return kept

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def sampler_counts_micro_batches() -> None:
    """A sampler advances by one batch per micro-batch, and reads every second batch."""
    _positions(lambda positions: [(place + place // BATCH * BATCH) % (STEPS * BATCH) for place in positions])


def rows_rotated_by_a_ring_buffer() -> None:
    """A ring buffer returns each batch from a different row on."""
    _positions(lambda positions: np.roll(positions, positions[0] // BATCH).tolist())
