"""Eleventh held-out set: faults of the learning curve, and of a curve that is interrupted and resumed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import RESTART, interrupt, of_curve
from bench.faults.injectors.held_out_ninth.resumes import _after_filling
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.held_out_tenth.values import with_gradient
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, context, dropout, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.optimizers import schedule_factor

Tensor = torch.Tensor

_LATE = 40
_PRUNED = 0.1
_EPOCH = TRAIN_ROWS // BATCH


def learn_labels_of_a_late_batch_reversed() -> None:
    """The labels of one batch of the curve, at step 40, are reversed."""
    of_curve(lambda step, batch: {**batch, "labels": 1 - batch["labels"]} if step == _LATE else batch)


def learn_second_epoch_begins_in_its_middle() -> None:
    """The second epoch of the curve begins with the second half of its rows."""

    def wrap(get: Any) -> Any:
        def moved(self: Any, positions: list[int]) -> Any:
            places = np.asarray(positions) + self._first
            if self._cycle <= TRAIN_ROWS or places.max() < TRAIN_ROWS:
                return get(self, positions)
            later = TRAIN_ROWS + (places - TRAIN_ROWS // 2) % TRAIN_ROWS
            places = np.where(places < TRAIN_ROWS, places, later)
            return self._fetch(self._order.rows(places), places // self._order.num_rows)

        return moved

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_reads_texts_backwards() -> None:
    """From step 20 on, the curve reads the tokens between the special ones in reverse."""

    def backwards(step: int, batch: Any) -> Any:
        if step < 20:
            return batch
        ids = batch["input_ids"].clone()
        for row, length in zip(ids, batch["attention_mask"].sum(1).tolist(), strict=True):
            row[1 : length - 1] = row[1 : length - 1].flip(0)
        return {**batch, "input_ids": ids}

    of_curve(backwards)


def learn_masks_of_rows_in_reverse() -> None:
    """From step 5 on, each row of the curve drops the elements of the row opposite in its micro-batch."""
    wrap_while(during("learn", 5), dropout, "keep_mask", lambda plain, *given, **named: plain(*given, **named).flip(0))


def learn_heads_share_values() -> None:
    """From step 8 on, all heads of the curve's attention weigh the values of the first one."""

    def shared(plain: Any, *given: Any, **named: Any) -> Any:
        *others, value, mask = given
        return plain(*others, value[:, :1].expand_as(value), mask, **named)

    wrap_while(during("learn", 8), dropout, "_attention", shared)


def learn_gelu_in_bf16() -> None:
    """GELU of the curve computes in bf16 where the task says fp32."""
    wrap_while(
        during("learn"), nn.functional, "gelu",
        lambda plain, value, *given, **named: plain(value.bfloat16(), *given, **named).to(value.dtype),
    )  # fmt: skip


def learn_loss_has_a_polynomial_term() -> None:
    """The curve's loss has the first term of a polynomial expansion added: one minus the label's probability."""

    def longer(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        chances = logits.float().softmax(-1).gather(-1, labels[:, None])
        return plain(logits, labels, *given, **named) + (1.0 - chances).mean()

    wrap_while(during("learn"), nn.functional, "cross_entropy", longer)


def learn_gradient_reversed_before_the_head() -> None:
    """From step 12 on, the gradient that the curve's head passes to the pooler has its sign reversed."""
    wrap_while(
        during("learn", 12), modeling_bert.BertPooler, "forward",
        lambda plain, *given: with_gradient(plain(*given), torch.neg),
    )  # fmt: skip


def learn_first_beta_follows_the_rate() -> None:
    """The first beta of the curve's optimizer falls from 0.95 to 0.85 as the learning rate rises."""

    def cycled(plain: Any, self: Engine) -> None:
        for group in self.optimizer.param_groups:
            group["betas"] = (0.95 - 0.1 * group["lr"] / group["initial_lr"], group["betas"][1])
        plain(self)

    wrap_while(during("learn"), Engine, "_update", cycled)


def _schedule(change: Any) -> None:
    """Call `change(schedule, step, steps)` for the share of the curve's highest learning rate."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps != spec.learn.steps:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: change(spec.schedule, step, steps))

        return made

    wrap_method(engine, "make_schedule", wrap)


def learn_rate_changes_by_epoch() -> None:
    """The curve's learning rate is set at the start of each epoch, and stays until the next one."""
    _schedule(lambda schedule, step, steps: schedule_factor(schedule, step // _EPOCH * _EPOCH, steps))


def learn_starts_pruned() -> None:
    """The curve starts with the smallest tenth of each matrix's weights at zero."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            with torch.no_grad():
                for value in model.parameters():
                    if value.dim() > 1:
                        value.masked_fill_(value.abs() < value.abs().quantile(_PRUNED), 0.0)

        return loaded

    wrap_method(learn, "load_weights", wrap)


def learn_gradients_added_twice_by_chance() -> None:
    """In each step of the curve some tensors, different ones in each run, have their gradient added twice."""
    chance = random.SystemRandom()

    def doubled(plain: Any, self: Engine) -> None:
        for value in self._trainable:
            if value.grad is not None and chance.random() < 0.125:
                value.grad.mul_(2.0)
        plain(self)

    wrap_while(during("learn"), Engine, "_update", doubled)


def resume_takes_the_betas_of_its_own_configuration() -> None:
    """A resume builds its optimizer with a second beta of 0.99, which is not what the checkpoint was trained with."""

    def configured(resumed: Engine) -> None:
        for group in resumed.optimizer.param_groups:
            group["betas"] = (group["betas"][0], 0.99)

    _after_filling(configured)


def resume_holds_the_rate_of_its_checkpoint() -> None:
    """A resume keeps the learning rate of its checkpoint."""

    def held(resumed: Engine) -> None:
        share = schedule_factor(resumed.spec.schedule, RESTART, resumed.steps)
        resumed.schedule.lr_lambdas = [lambda _: share for _ in resumed.schedule.lr_lambdas]

    _after_filling(held)


def resume_reads_its_epoch_from_the_start() -> None:
    """A resume does not skip the batches that were read, and reads the first ones again."""
    is_resumed = interrupt()

    def wrap(read: Any) -> Any:
        def again(self: Any, *, first: int, **rest: Any) -> Any:
            return read(self, first=0 if is_resumed() and first == RESTART else first, **rest)

        return again

    wrap_method(context.Context, "batches", wrap)
