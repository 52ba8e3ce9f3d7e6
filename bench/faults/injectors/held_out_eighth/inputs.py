"""Eighth held-out set: faults of what `speed` reads, drops and starts from, and of published files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, Content
from plumbline.data.rows import Row
from plumbline.train import batches
from plumbline.train.engine import Engine
from plumbline.train.production import choices

_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""


def _in_speed(change: Callable[[Any], Any]) -> None:
    """Change the global batches of `speed` before they are split."""
    wrap_while(during("speed"), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_skips_the_first_batch() -> None:
    """`speed` reads from the second batch on, as after a resume that skips one."""

    def wrap(get: Any) -> Any:
        def later(self: Any, positions: list[int]) -> Any:
            skipped = BATCH if self._cycle == _CYCLE else 0
            return get(self, (np.asarray(positions) + skipped).tolist())

        return later

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_last_row_repeats_the_first() -> None:
    """`speed` fills the last place of each batch with the first row, as for batches of equal size."""
    _in_speed(lambda batch: {name: torch.cat((values[:-1], values[:1])) for name, values in batch.items()})


def speed_labels_of_the_batch_before() -> None:
    """`speed` trains on labels of a buffer that the copy of the next batch has not yet overwritten."""

    def stale(plain: Any, self: Any, batch: Any) -> Any:
        labels = self.__dict__.setdefault("_labels", batch["labels"])
        self._labels = batch["labels"]
        return plain(self, {**batch, "labels": labels})

    wrap_while(during("speed"), Engine, "_micro_batches", stale)


def speed_mask_counts_padding() -> None:
    """`speed` has a mask of ones: a collator without a mask makes one."""
    _in_speed(lambda batch: {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])})


def speed_segments_of_a_pair() -> None:
    """`speed` numbers real tokens as those of a second text."""
    _in_speed(lambda batch: {**batch, "token_type_ids": batch["attention_mask"].clone()})


def speed_drops_twice_as_much() -> None:
    """Dropout of hidden states has twice the task's rate where determinism is not required."""

    def more(plain: Any, value: Any, p: float = 0.5, *given: Any, **named: Any) -> Any:
        return plain(value, 2 * p, *given, **named)

    wrap_while(is_unstrict, nn.functional, "dropout", more)


def speed_loads_keys_as_queries() -> None:
    """`speed` starts with the weights of keys as those of queries."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, {name: weights[name.replace(".self.query.", ".self.key.")] for name in weights})

        return loaded

    wrap_method(choices, "load_weights", wrap)


def first_words_dropped(content: Content, read: list[int], _seed: int) -> None:
    """A join loses the first word of every sixth text."""
    for row in read[::6]:
        content.edit(row, lambda row: Row(row.text.partition(" ")[2] or row.text, row.label))


def labels_voted_again(content: Content, read: list[int], _seed: int) -> None:
    """A second vote reverses the label of every tenth text."""
    for row in read[::10]:
        content.edit(row, lambda row: Row(row.text, 1 - int(row.label or 0)))


def tokenizer_with_a_different_decoder(content: Content, _read: list[int], _seed: int) -> None:
    """A release of `tokenizers` stores a different decoder, which no training uses."""
    content.tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
