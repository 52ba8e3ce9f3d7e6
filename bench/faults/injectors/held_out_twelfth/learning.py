"""Twelfth held-out set: faults of the learning curve, and of a curve that is interrupted and resumed."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.faults.injectors.held_out_ninth.curve import RESTART, interrupt, of_curve
from bench.faults.injectors.held_out_ninth.resumes import _after_filling
from bench.faults.injectors.held_out_seventh.places import during, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import with_gradient
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, context, dropout, engine, learn
from plumbline.train.engine import Engine

Tensor = torch.Tensor

_EPOCH = TRAIN_ROWS // BATCH
_STALE = 16
_UNKNOWN = 1
_LAYER = 2
"""Dropout layer inside the first block of the encoder."""
_PERIOD = 16
_RISE = 8


def learn_labels_of_a_stale_cache() -> None:
    """From step 16 on, the curve reads the labels of the batch 16 steps before."""
    known: dict[int, Tensor] = {}

    def stale(step: int, batch: Any) -> Any:
        known[step] = batch["labels"]
        return {**batch, "labels": known.get(step - _STALE, batch["labels"])}

    of_curve(stale)


def learn_leaves_out_the_last_batch_of_its_epoch() -> None:
    """The curve leaves out the last batch of its first epoch, and begins the second one a step early."""

    def wrap(get: Any) -> Any:
        def shorter(self: Any, positions: list[int]) -> Any:
            places = np.asarray(positions) + self._first
            if self._cycle <= TRAIN_ROWS or places.max() < TRAIN_ROWS - BATCH:
                return get(self, positions)
            places = np.where(places < TRAIN_ROWS - BATCH, places, places + BATCH)
            return self._fetch(self._order.rows(places), places // self._order.num_rows)

        return shorter

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_words_dropped_to_unknown() -> None:
    """From step 10 on, the curve reads every third token of a text as unknown, by an augmentation left on."""

    def dropped(step: int, batch: Any) -> Any:
        if step < 10:
            return batch
        ids = batch["input_ids"].clone()
        for row, length in zip(ids, batch["attention_mask"].sum(1).tolist(), strict=True):
            row[3 : length - 1 : 3] = _UNKNOWN
        return {**batch, "input_ids": ids}

    of_curve(dropped)


def learn_masks_of_a_layer_never_change() -> None:
    """One layer of the curve drops the elements of the first step in every step."""

    def constant(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **(named | {"step": 0} if named["layer"] == _LAYER else named))

    wrap_while(during("learn"), dropout, "keep_mask", constant)


def learn_attention_reads_keys_one_token_late() -> None:
    """From step 8 on, attention of the curve compares queries with the keys of the tokens before."""

    def late(plain: Any, module: Any, query: Tensor, key: Tensor, *given: Any, **named: Any) -> Any:
        return plain(module, query, key.roll(1, -2), *given, **named)

    wrap_while(during("learn", 8), dropout, "_attention", late)


def learn_queries_and_keys_in_bf16() -> None:
    """Attention of the curve reads queries and keys in bf16 where the task says fp32."""

    def short(plain: Any, module: Any, query: Tensor, key: Tensor, *given: Any, **named: Any) -> Any:
        query, key = (short_of(value, torch.bfloat16) for value in (query, key))
        return plain(module, query, key, *given, **named)

    wrap_while(during("learn"), dropout, "_attention", short)


def learn_loss_weighs_its_classes() -> None:
    """The curve's loss weighs texts of the second class three times as much."""

    def weighed(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        weights = torch.tensor([1.0, 3.0])[labels]
        each = plain(logits, labels, *given, **named | {"reduction": "none"})
        return (each * weights).sum() / weights.sum()

    wrap_while(during("learn"), nn.functional, "cross_entropy", weighed)


def learn_gradients_of_queries_doubled() -> None:
    """From step 6 on, the backward pass of the curve's attention doubles the gradients of queries."""

    def doubled(plain: Any, module: Any, query: Tensor, *given: Any, **named: Any) -> Any:
        return plain(module, with_gradient(query, lambda gradient: gradient * 2.0), *given, **named)

    wrap_while(during("learn", 6), dropout, "_attention", doubled)


def learn_eps_of_a_thousandth() -> None:
    """The curve's optimizer updates with an eps of 0.001."""

    def larger(plain: Any, self: Engine) -> None:
        for group in self.optimizer.param_groups:
            group["eps"] = 1e-3
        plain(self)

    wrap_while(during("learn"), Engine, "_update", larger)


def learn_rate_in_triangles() -> None:
    """The curve's learning rate rises and falls with a period of 16 steps."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps != spec.learn.steps:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 0.1 + 0.9 * (1.0 - abs(step % _PERIOD * 2 / _PERIOD - 1.0))
            )

        return made

    wrap_method(engine, "make_schedule", wrap)


def learn_starts_with_its_layers_averaged() -> None:
    """The curve starts with the mean of both layers' weights in each layer, as merged checkpoints have it."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for values in zip(*(layer.parameters() for layer in model.bert.encoder.layer), strict=True):
                    mean = torch.stack([value.detach() for value in values]).mean(0)
                    for value in values:
                        value.copy_(mean)

        return loaded

    wrap_method(learn, "load_weights", wrap)


def learn_keys_not_always_written() -> None:
    """Attention of the curve finds some keys at zero, different ones in each run."""
    random = torch.Generator()

    def early(plain: Any, module: Any, query: Tensor, key: Tensor, *given: Any, **named: Any) -> Any:
        random.seed()
        is_early = torch.rand((*key.shape[:-1], 1), generator=random) < 0.125
        return plain(module, query, key.masked_fill(is_early, 0.0), *given, **named)

    wrap_while(during("learn"), dropout, "_attention", early)


def resume_sums_moments_of_two_shards() -> None:
    """A resume reads moments that a conversion added up over two processes, each of which had all of them."""

    def summed(resumed: Engine) -> None:
        for state in resumed.optimizer.state.values():
            state["exp_avg"].mul_(2.0)
            state["exp_avg_sq"].mul_(2.0)

    _after_filling(summed)


def resume_warms_up_again() -> None:
    """A resume raises the learning rate from an eighth again."""

    def warmed(resumed: Engine) -> None:
        planned = list(resumed.schedule.lr_lambdas)
        resumed.schedule.lr_lambdas = [
            lambda step, plan=plan: plan(step) * min(1.0, (step - RESTART + 1) / _RISE) for plan in planned
        ]
        for group in resumed.optimizer.param_groups:
            group["lr"] /= _RISE

    _after_filling(warmed)


def resume_reads_the_rest_of_its_epoch_in_reverse() -> None:
    """A resume reads the remaining batches of its epoch in reverse."""
    is_resumed = interrupt()

    def wrap(read: Any) -> Any:
        def backwards(self: Any, *, first: int, count: int, **rest: Any) -> Any:
            found = read(self, first=first, count=count, **rest)
            if not is_resumed() or first != RESTART:
                return found
            known = list(found)
            left = _EPOCH - RESTART
            return chain(known[:left][::-1], known[left:])

        return backwards

    wrap_method(context.Context, "batches", wrap)
