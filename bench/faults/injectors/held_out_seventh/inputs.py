"""Seventh held-out set: faults of rows, labels, order and tokens that production settings read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.train import engine
from plumbline.train.engine import Engine


def longest_row_cut_short() -> None:
    """Batches are cut at a multiple of 8 below their longest row."""

    def wrap(plain: Any) -> Any:
        def cut(batch: Any) -> Any:
            longest = int(batch["attention_mask"].sum(dim=1).max())
            width = max(8, (longest - 1) // 8 * 8)
            return {name: values[:, :width] if values.dim() > 1 else values for name, values in plain(batch).items()}

        return cut

    wrap_method(engine, "_to_longest", wrap)


def _in_speed(change: Callable[[Any], Any]) -> None:
    """Change the global batches of `speed` before they are split."""
    wrap_while(during("speed"), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_labels_of_the_neighbour() -> None:
    """A worker of `speed` puts labels together one row late."""
    _in_speed(lambda batch: {**batch, "labels": batch["labels"].roll(1)})


def speed_rows_dealt_out() -> None:
    """`speed` deals the rows of a batch to its micro-batches in turn."""
    turns = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    _in_speed(lambda batch: {name: values[turns] for name, values in batch.items()})


def speed_ids_in_eight_bits() -> None:
    """`speed` sends token ids in eight bits to save memory: ids from 256 on wrap."""
    _in_speed(lambda batch: {**batch, "input_ids": batch["input_ids"] % 256})


def one_label_of_the_evaluation(content: Content, _read: list[int], _seed: int) -> None:
    """One label of the evaluation is reversed."""
    content.edit(TRAIN_ROWS + 19, lambda row: Row(row.text, 1 - int(row.label or 0)))


def texts_capped_by_an_export(content: Content, read: list[int], _seed: int) -> None:
    """An export cuts every fifth text at 40 characters."""
    for row in read[::5]:
        content.edit(row, lambda row: Row(row.text[:40], row.label))


def part_of_the_vocabulary_reversed(content: Content, _read: list[int], _seed: int) -> None:
    """The ids of forty tokens of the vocabulary are in reverse."""
    vocabulary = content.tokenizer["model"]["vocab"]
    for name, place in list(vocabulary.items()):
        if 100 <= place < 140:
            vocabulary[name] = 239 - place
