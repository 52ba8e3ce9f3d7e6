"""Sixth held-out set: faults that begin later than the probe ends, or at an event of the learning curve."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.faults.injectors.held_out_fifth.learning import _engine
from bench.faults.injectors.patching import replace_everywhere, step_counter, wrap_method
from bench.faults.injectors.training import _entropy
from bench.faults.world import BATCH, STEPS, TRAIN_ROWS
from plumbline.train import batches, optimizers
from plumbline.train.dropout import PortableDropout

_LEARN = ("learn",)
_EPOCH = TRAIN_ROWS // BATCH
"""Steps of an epoch, more than the probe has."""
_LATER = 20
"""A step that the probe does not reach."""


def _in_epoch(change: Callable[[Any, Any], None]) -> None:
    """Change fetched rows of the second and later epochs; `change` gets the batch and the chosen rows."""

    def wrap(fetch: Any) -> Any:
        def fetched(self: Any, rows: Any, epochs: Any) -> Any:
            batch = fetch(self, rows, epochs)
            if (epochs > 0).any():
                change(batch, epochs > 0)
            return batch

        return fetched

    wrap_method(batches._Encoded, "_fetch", wrap)


def learn_labels_shifted_in_the_second_epoch() -> None:
    """A cache written during the first epoch returns labels one row late from the second epoch on."""

    def change(batch: Any, _chosen: Any) -> None:
        batch["labels"] = np.roll(batch["labels"], 1)

    _in_epoch(change)


def learn_second_epoch_reads_old_tokens() -> None:
    """A cache gives the second epoch the tokens of an older vocabulary, which had 400 entries."""

    def change(batch: Any, chosen: Any) -> None:
        ids = batch["input_ids"]
        ids[chosen[:, None] & (ids >= 400)] = 1

    _in_epoch(change)


def learn_dropout_raised_in_the_second_epoch() -> None:
    """A recipe against overfitting drops three tenths from the second epoch on."""

    def change(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            for module in self.bare.modules():
                if isinstance(module, PortableDropout) and number >= _EPOCH:
                    module.p = 0.3
            return step(self, number, batch)

        return stepped

    _engine("step", change)


def learn_autocast_left_on_by_the_evaluation() -> None:
    """An evaluation under autocast to bf16 leaves autocast on for the training after it."""
    evaluated = [False]

    def mark(evaluate: Any) -> Any:
        def marked(*args: Any, **rest: Any) -> Any:
            evaluated[0] = True
            return evaluate(*args, **rest)

        return marked

    def change(forward: Any) -> Any:
        def lowered(self: Any, piece: Any, share: float) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=evaluated[0]):
                return forward(self, piece, share)

        return lowered

    replace_everywhere("evaluate", mark, among=_LEARN)
    _engine("_forward", change)


def learn_norm_compiled_again_at_step_twenty() -> None:
    """A compiler compiles LayerNorm again after twenty steps, with an eps of 1e-3."""
    norm, step = functional.layer_norm, step_counter()

    def compiled(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        return norm(value, shape, weight, bias, 1e-3 if step() >= _LATER else eps)

    functional.layer_norm = compiled


def learn_classes_weighted_in_the_second_epoch() -> None:
    """A curriculum weights the second class twice from the second epoch on."""
    step = step_counter()

    def wrap(entropy: Any) -> Any:
        def weighted(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            if step() < _EPOCH or not torch.is_grad_enabled():
                return entropy(scores, labels, *args, **rest)
            return entropy(scores, labels, weight=torch.tensor([1.0, 2.0]).to(scores))

        return weighted

    _entropy(wrap)


def learn_layer_frozen_in_the_second_epoch() -> None:
    """A recipe freezes the first layer from the second epoch on."""

    def change(update: Any) -> Any:
        def frozen(self: Any) -> None:
            if self.optimizer.state and self.schedule.last_epoch >= _EPOCH:
                for value in self.bare.bert.encoder.layer[0].parameters():
                    value.grad = None
            update(self)

        return frozen

    _engine("_update", change)


def learn_schedule_steps_once_an_epoch() -> None:
    """A trainer advances the decay after each epoch instead of after each step."""

    def wrap(factor: Any) -> Any:
        def by_epoch(schedule: Any, step: int, steps: int) -> float:
            if steps <= STEPS:
                return float(factor(schedule, step, steps))
            value: float = factor(schedule, max(min(step, 2), step // _EPOCH * _EPOCH), steps)
            return value

        return by_epoch

    wrap_method(optimizers, "schedule_factor", wrap)


def learn_first_evaluation_repeated() -> None:
    """A cache returns the scores of the first evaluation at every later evaluation."""

    def wrap(evaluate: Any) -> Any:
        first: list[Any] = []

        def cached(*args: Any, step: int, **rest: Any) -> Any:
            evidence, arrays = evaluate(*args, step=step, **rest)
            first[:] = first or [(evidence, arrays)]
            return first[0][0].replace(step=step), first[0][1]

        return cached

    replace_everywhere("evaluate", wrap, among=_LEARN)


def learn_rows_raced_in_the_second_epoch() -> None:
    """A prefetcher without a lock gives two rows of each batch each other's tokens from the second epoch on."""

    def change(batch: Any, _chosen: Any) -> None:
        ids = batch["input_ids"]
        place = int.from_bytes(os.urandom(2), "little") % len(ids)
        ids[[place, place - 1]] = ids[[place - 1, place]]

    _in_epoch(change)


def learn_head_drawn_anew() -> None:
    """The learning curve's loader treats the classifier as missing in the checkpoint, and draws it."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            noise = torch.Generator().manual_seed(5)
            with torch.no_grad():
                model.classifier.weight.copy_(torch.randn(model.classifier.weight.shape, generator=noise) * 0.02)

        return loaded

    replace_everywhere("load_weights", wrap, among=_LEARN)
