"""Tenth held-out set: faults of what `speed` reads, draws and starts from, and of published files."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, Content
from plumbline.data.rows import Row
from plumbline.train import batches
from plumbline.train.engine import Engine
from plumbline.train.production import choices

_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""
_HEADS = 2


def _in_speed(change: Callable[[Any], Any]) -> None:
    """Change the global batches of `speed` before they are split."""
    wrap_while(during("speed"), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_shuffles_its_second_cycle() -> None:
    """`speed` shuffles its rows again once it has read each of them."""

    def wrap(get: Any) -> Any:
        def shuffled(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            found = []
            for position in positions:
                cycle, place = divmod(position, _CYCLE)
                found.append(int(np.random.default_rng(cycle).permutation(_CYCLE)[place]) if cycle else place)
            return get(self, found)

        return shuffled

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_labels_sorted_apart() -> None:
    """`speed` reads the labels of each batch in ascending order, beside texts in their own."""
    _in_speed(lambda batch: {**batch, "labels": batch["labels"].sort().values})


def speed_first_token_twice() -> None:
    """`speed` adds the first special token to texts that have it already."""

    def doubled(batch: Any) -> Any:
        return {
            name: torch.cat((values[:, :1], values[:, :-1]), 1) if values.dim() > 1 else values
            for name, values in batch.items()
        }

    _in_speed(doubled)


def speed_loader_draws_from_the_generator() -> None:
    """The loader of `speed` draws from torch's own generator for each batch."""

    def drawn(batch: Any) -> Any:
        torch.rand(len(batch["labels"]))
        return batch

    _in_speed(drawn)


def speed_splits_a_fused_projection_by_heads() -> None:
    """`speed` loads queries, keys and values split from one matrix as if its rows were in the order of heads."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            for layer in model.bert.encoder.layer:
                parts = [getattr(layer.attention.self, name).weight for name in ("query", "key", "value")]
                fused = torch.cat([part.detach() for part in parts])
                split = fused.view(_HEADS, 3, -1, fused.shape[1]).transpose(0, 1).reshape(3, -1, fused.shape[1])
                with torch.no_grad():
                    for part, rows in zip(parts, split, strict=True):
                        part.copy_(rows)

        return loaded

    wrap_method(choices, "load_weights", wrap)


def digits_replaced_by_a_scrubber(content: Content, read: list[int], _seed: int) -> None:
    """A scrubber of personal data replaces each digit of every third text by a zero."""
    for row in read[::3]:
        content.edit(row, lambda kept: Row(re.sub(r"\d", "0", kept.text), kept.label))


def chinese_characters_not_separated(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer no longer puts spaces around Chinese characters."""
    content.tokenizer["normalizer"]["handle_chinese_chars"] = False


def tokenizer_stores_a_truncation(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer's file stores a truncation that is longer than the task's."""
    content.tokenizer["truncation"] = {
        "direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
