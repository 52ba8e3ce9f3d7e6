"""Twelfth held-out set: faults of what `speed` reads, draws and starts from, and of published files."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, Content
from plumbline.data.rows import Row
from plumbline.train import batches, speed
from plumbline.train.engine import Engine
from plumbline.train.production import choices

_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""
_PADDING, _SEPARATOR = 0, 3


def _in_speed(change: Any, first: int = 0) -> None:
    """Change the global batches of `speed` from step `first` on, before they are split."""
    wrap_while(during("speed", first), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_reads_its_rows_in_reverse() -> None:
    """`speed` reads the rows of each batch in reverse."""

    def wrap(get: Any) -> Any:
        def backwards(self: Any, positions: list[int]) -> Any:
            return get(self, positions[::-1] if self._cycle == _CYCLE else positions)

        return backwards

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_labels_follow_the_majority() -> None:
    """From step 4 on, `speed` reads the most frequent label of the batch for each of its rows."""
    _in_speed(lambda batch: {**batch, "labels": batch["labels"].mode().values.expand_as(batch["labels"]).clone()}, 4)


def speed_separators_are_padding() -> None:
    """`speed` reads the token of padding in the place of each separator, as with the ids of a different vocabulary."""

    def replaced(batch: Any) -> Any:
        return {**batch, "input_ids": batch["input_ids"].masked_fill(batch["input_ids"] == _SEPARATOR, _PADDING)}

    _in_speed(replaced)


def speed_seeds_with_the_next_number() -> None:
    """`speed` seeds its generators with the seed plus one, as if its process were the second one."""
    wrap_method(speed, "seed_generators", lambda seed_all: lambda seed: seed_all(seed + 1))


def speed_stretches_its_table_of_positions() -> None:
    """`speed` starts with the table of positions interpolated to twice its length, for longer texts."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    if name.endswith("position_embeddings.weight"):
                        places = torch.arange(len(value))
                        value.copy_((value[places // 2] + value[(places + 1) // 2]) / 2)

        return loaded

    wrap_method(choices, "load_weights", wrap)


def adjacent_words_exchanged(content: Content, read: list[int], _seed: int) -> None:
    """An augmentation exchanges the second and the third word of every fourth text."""

    def exchanged(text: str) -> str:
        words = text.split(" ")
        words[1:3] = words[1:3][::-1]
        return " ".join(words)

    for row in read[::4]:
        content.edit(row, lambda kept: Row(exchanged(kept.text), kept.label))


def pieces_without_their_prefix(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer looks up the later pieces of a word without the prefix that marks them."""
    content.tokenizer["model"]["continuing_subword_prefix"] = ""


def vocabulary_written_in_a_different_order(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer's file lists the same tokens with the same ids in a different order."""
    model = content.tokenizer["model"]
    model["vocab"] = dict(reversed(model["vocab"].items()))
