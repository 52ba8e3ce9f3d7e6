"""Thirteenth held-out set: faults of what `speed` reads, draws and starts from, and of published files."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, Content
from plumbline.data.rows import Row
from plumbline.train import batches
from plumbline.train.engine import Engine
from plumbline.train.production import choices
from plumbline.train.trail import TrailObserver

_CYCLE = 10 * BATCH
"""Number of rows that `speed` repeats."""
_LONGEST = 3
"""Letters of the longest piece that a conversion of the vocabulary keeps."""


def _in_speed(change: Any, first: int = 0) -> None:
    """Change the global batches of `speed` from step `first` on, before they are split."""
    wrap_while(during("speed", first), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_deals_two_batches_in_turn() -> None:
    """`speed` deals the rows of each two batches to them in turn."""

    def wrap(get: Any) -> Any:
        def dealt(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            return get(self, [
                place // (2 * BATCH) * 2 * BATCH + place % BATCH * 2 + place // BATCH % 2 for place in positions
            ])  # fmt: skip

        return dealt

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_fills_labels_with_the_first() -> None:
    """From step 3 on, the last three rows of each batch of `speed` have the label of the first one."""

    def filled(batch: Any) -> Any:
        labels = batch["labels"].clone()
        labels[-3:] = labels[0]
        return {**batch, "labels": labels}

    _in_speed(filled, 3)


def speed_cuts_rows_at_the_shortest_text() -> None:
    """`speed` cuts the rows of each batch at the length of its shortest text."""

    def cut(batch: Any) -> Any:
        is_read = torch.arange(batch["input_ids"].shape[1]) < batch["attention_mask"].sum(1).min()
        return {**batch, **{name: batch[name] * is_read for name in ("input_ids", "attention_mask", "token_type_ids")}}

    _in_speed(cut)


def speed_tries_a_forward_pass_first() -> None:
    """`speed` tries a forward pass before its first step, to find how much memory it needs."""
    tried: list[Engine] = []

    def forward(plain: Any, self: Engine, piece: Any, share: float) -> Any:
        if isinstance(self.observer, TrailObserver) and not tried:
            tried.append(self)
            with torch.no_grad():
                self.model(**self._inputs(piece))
        return plain(self, piece, share)

    wrap_while(during("speed"), Engine, "_forward", forward)


def speed_loads_a_shard_twice() -> None:
    """`speed` loads the first half of each first feed-forward weight again for its second half."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    if name.endswith("intermediate.dense.weight"):
                        half = len(value) // 2
                        value[half:] = value[:half].clone()

        return loaded

    wrap_method(choices, "load_weights", wrap)


def texts_in_title_case(content: Content, read: list[int], _seed: int) -> None:
    """An export writes the words of every third text with a capital letter."""
    for row in read[::3]:
        content.edit(row, lambda kept: Row(kept.text.title(), kept.label))


def long_pieces_left_out(content: Content, _read: list[int], _seed: int) -> None:
    """A conversion of the vocabulary writes placeholders for pieces of more than three letters."""
    model = content.tokenizer["model"]
    model["vocab"] = {
        piece if piece.startswith("[") or len(piece.removeprefix("##")) <= _LONGEST else f"[unused{number}]": number
        for piece, number in model["vocab"].items()
    }


def longer_words_allowed(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer allows words of 200 letters, and no text has a word of more than 100."""
    content.tokenizer["model"]["max_input_chars_per_word"] = 200
