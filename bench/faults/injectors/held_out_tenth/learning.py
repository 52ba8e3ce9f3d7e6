"""Tenth held-out set: faults of the learning curve, and of a curve that is resumed."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_ninth.curve import RESTART, of_curve
from bench.faults.injectors.held_out_ninth.resumes import _after_filling
from bench.faults.injectors.held_out_seventh.places import during, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import with_gradient
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, dropout, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.optimizers import schedule_factor

Tensor = torch.Tensor

_SEPARATOR = 3
_FLOOR = 0.1


def learn_first_labels_are_zero() -> None:
    """The first label of each micro-batch of the curve is never written: it is zero."""

    def unwritten(_: int, batch: Any) -> Any:
        labels = batch["labels"].clone()
        labels[:: BATCH // 2] = 0
        return {**batch, "labels": labels}

    of_curve(unwritten)


def learn_second_epoch_in_the_order_of_the_first() -> None:
    """The second epoch of the curve reads its rows in the order of the first one."""

    def wrap(get: Any) -> Any:
        def repeated(self: Any, positions: list[int]) -> Any:
            places = [(place + self._first) % self._cycle % TRAIN_ROWS - self._first for place in positions]
            return get(self, places)

        return repeated

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_separators_behind_the_padding() -> None:
    """The curve pads its texts before it adds their last special token, which is then at the end of each row."""

    def behind(_: int, batch: Any) -> Any:
        ids, mask = batch["input_ids"].clone(), batch["attention_mask"].clone()
        rows, last = torch.arange(len(ids)), mask.sum(1) - 1
        ids[rows, last], mask[rows, last] = 0, 0
        ids[:, -1], mask[:, -1] = _SEPARATOR, 1
        return {**batch, "input_ids": ids, "attention_mask": mask}

    of_curve(behind)


def learn_masks_of_a_neighbouring_seed() -> None:
    """From step 10 on, the curve's dropout masks are those of the next seed."""
    wrap_while(
        during("learn", 10), dropout, "keep_mask",
        lambda plain, *given, seed, **named: plain(*given, seed=seed + 1, **named),
    )  # fmt: skip


def learn_pooler_by_a_hard_tanh() -> None:
    """From step 6 on, the pooler's activation clips at one."""
    wrap_while(during("learn", 6), nn.Tanh, "forward", lambda _, self, value: value.clamp(-1.0, 1.0))


def learn_layers_exchange_bf16() -> None:
    """The curve passes states from layer to layer in bf16 where the task says fp32."""
    wrap_while(
        during("learn"), modeling_bert.BertLayer, "forward",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.bfloat16),
    )  # fmt: skip


def learn_loss_is_a_sum() -> None:
    """The curve's loss is the sum over the rows of a micro-batch."""
    wrap_while(
        during("learn"), nn.functional, "cross_entropy",
        lambda plain, *given, **named: plain(*given, **named | {"reduction": "sum"}),
    )  # fmt: skip


def learn_table_gradients_shrunk() -> None:
    """From step 9 on, the curve's tables get a tenth of their gradient, as a trick for stability does."""

    def table(plain: Any, *given: Any, **named: Any) -> Any:
        return with_gradient(plain(*given, **named), lambda gradient: gradient * 0.1)

    wrap_while(during("learn", 9), nn.functional, "embedding", table)


def learn_parameter_in_no_group() -> None:
    """The curve's optimizer has the bias of the predictions in none of its groups."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> None:
            build(self, *given, **named)
            if self.part == "learn":
                left_out = self.bare.get_parameter("cls.predictions.bias")
                for group in self.optimizer.param_groups:
                    group["params"] = [value for value in group["params"] if value is not left_out]

        return built

    wrap_method(Engine, "__init__", wrap)


def learn_rate_ends_at_a_tenth() -> None:
    """The curve's learning rate decays to a tenth of its peak, not to zero."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps != spec.learn.steps:
                return make(optimizer, spec, steps)
            warm = spec.schedule.warmup_steps

            def factor(step: int) -> float:
                share = schedule_factor(spec.schedule, step, steps)
                return share if step < warm else _FLOOR + (1 - _FLOOR) * share

            return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

        return made

    wrap_method(engine, "make_schedule", wrap)


def learn_starts_with_segments_exchanged() -> None:
    """The curve starts with the rows of the table of segments in each other's place."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, weights)
            table = model.get_parameter("bert.embeddings.token_type_embeddings.weight")
            with torch.no_grad():
                table.copy_(table.flip(0))

        return loaded

    wrap_method(learn, "load_weights", wrap)


def learn_tensors_lose_their_update() -> None:
    """In each step of the curve one tensor, a different one in each run, is read before its update is written."""
    choose = random.SystemRandom()

    def lost(plain: Any, self: Engine) -> None:
        value = choose.choice(self._trainable)
        before = value.detach().clone()
        plain(self)
        with torch.no_grad():
            value.copy_(before)

    wrap_while(during("learn"), Engine, "_update", lost)


def resume_decays_every_parameter() -> None:
    """A resume makes its groups anew, and decays normalisations and biases, too."""

    def decay(resumed: Engine) -> None:
        for group in resumed.optimizer.param_groups:
            group["weight_decay"] = resumed.spec.optimizer.weight_decay

    _after_filling(decay)


def resume_plans_its_schedule_for_the_rest() -> None:
    """A resume begins a whole schedule over the steps that are left."""

    def planned(resumed: Engine) -> None:
        spec, left = resumed.spec.schedule, resumed.steps - RESTART
        resumed.schedule.lr_lambdas = [
            lambda step: schedule_factor(spec, step - RESTART, left) for _ in resumed.schedule.lr_lambdas
        ]
        for group in resumed.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule_factor(spec, 0, left)

    _after_filling(planned)
