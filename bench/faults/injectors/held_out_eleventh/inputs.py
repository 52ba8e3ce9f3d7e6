"""Eleventh held-out set: faults of what `speed` reads, draws and starts from, and of published files."""

from __future__ import annotations

import itertools
import re
from typing import Any

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
_UNKNOWN, _COMMON = 1, 300
_RESIDUAL_SHARE = 0.5
"""1 / sqrt(2 * layers), for two layers."""


def _in_speed(change: Any, first: int = 0) -> None:
    """Change the global batches of `speed` from step `first` on, before they are split."""
    wrap_while(during("speed", first), Engine, "_micro_batches", lambda plain, self, batch: plain(self, change(batch)))


def speed_batches_of_workers_exchanged() -> None:
    """`speed` reads the batches of its two workers in the order in which the second one comes first."""

    def wrap(get: Any) -> Any:
        def exchanged(self: Any, positions: list[int]) -> Any:
            if self._cycle != _CYCLE:
                return get(self, positions)
            return get(self, [(place // BATCH ^ 1) * BATCH + place % BATCH for place in positions])

        return exchanged

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def speed_labels_zero_from_step_six() -> None:
    """From step 6 on, `speed` reads labels from a buffer that was cleared."""
    _in_speed(lambda batch: {**batch, "labels": torch.zeros_like(batch["labels"])}, 6)


def speed_rare_tokens_unknown() -> None:
    """`speed` reads tokens beyond the first 300 as unknown, as with the vocabulary of a smaller model."""

    def known(batch: Any) -> Any:
        return {**batch, "input_ids": batch["input_ids"].masked_fill(batch["input_ids"] >= _COMMON, _UNKNOWN)}

    _in_speed(known)


def speed_micro_batches_share_masks() -> None:
    """`speed` restores its generator before the second micro-batch: both drop the same places."""
    count = itertools.count()
    states: list[Any] = []

    def restored(plain: Any, self: Engine, *given: Any) -> Any:
        if next(count) % self.spec.optimizer.accumulation_steps:
            torch.set_rng_state(states[-1])
        else:
            states[:] = [torch.get_rng_state()]
        return plain(self, *given)

    wrap_while(during("speed"), Engine, "_forward", restored)


def speed_rescales_its_residual_projections() -> None:
    """`speed` starts with the weights before each residual sum halved, as GPT-2 does for two layers."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for name, value in model.named_parameters():
                    if name.endswith("output.dense.weight"):
                        value.mul_(_RESIDUAL_SHARE)

        return loaded

    wrap_method(choices, "load_weights", wrap)


def articles_filtered(content: Content, read: list[int], _seed: int) -> None:
    """A filter of stop words removes `the` and `a` from every fourth text."""
    for row in read[::4]:
        content.edit(row, lambda kept: Row(re.sub(r"\b(the|a) ", "", kept.text, flags=re.IGNORECASE), kept.label))


def punctuation_not_separated(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer splits words at spaces alone, and leaves punctuation attached."""
    content.tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
