"""Ninth held-out set: faults of what `speed` reads, draws and starts from, and of published files."""

from __future__ import annotations

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


def _in_speed(change: Callable[[Any, Any], Any]) -> None:
    """Call `change(engine, batch)` for the global batches of `speed`, before they are split."""
    wrap_while(
        during("speed"), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(self, batch))
    )  # fmt: skip


def speed_groups_rows_by_length() -> None:
    """`speed` reads its rows in the order of their length."""

    def wrap(get: Any) -> Any:
        def grouped(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            lengths = self._rows.lengths(self._order.rows(np.arange(_CYCLE)))
            return get(self, np.argsort(lengths, kind="stable")[np.asarray(positions) % _CYCLE].tolist())

        return grouped

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_pads_on_the_left() -> None:
    """`speed` has the padding of its rows on the left."""

    def padded(_: Any, batch: Any) -> Any:
        width = batch["attention_mask"].shape[1]
        missing = width - batch["attention_mask"].sum(dim=1, keepdim=True)
        read = (torch.arange(width) - missing) % width
        return {name: values.gather(1, read) if values.dim() > 1 else values for name, values in batch.items()}

    _in_speed(padded)


def speed_reverses_labels_of_odd_steps() -> None:
    """`speed` has the labels of every second batch in reversed order."""

    def reversed_at_odd(engine: Any, batch: Any) -> Any:
        engine.__dict__["_is_odd"] = is_odd = not engine.__dict__.get("_is_odd", True)
        return {**batch, "labels": batch["labels"].flip(0)} if is_odd else batch

    _in_speed(reversed_at_odd)


def speed_seeds_its_generator_again() -> None:
    """`speed` seeds torch's generator before each step, so that the same elements are dropped."""

    def seeded(self: Any, batch: Any) -> Any:
        torch.manual_seed(self.spec.seed)
        return batch

    _in_speed(seeded)


def speed_position_table_off_by_two() -> None:
    """`speed` loads the table of positions two places late, as of a different family."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            table = model.get_parameter("bert.embeddings.position_embeddings.weight")
            with torch.no_grad():
                table.copy_(table.roll(2, 0))

        return loaded

    wrap_method(choices, "load_weights", wrap)


def last_words_doubled(content: Content, read: list[int], _seed: int) -> None:
    """The last word of every fourth text is there twice."""
    for row in read[::4]:
        content.edit(row, lambda kept: Row(f"{kept.text} {kept.text.split()[-1]}", kept.label))


def numbers_in_single_digits(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer splits numbers into their digits."""
    plain = content.tokenizer["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    content.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [plain, digits]}
