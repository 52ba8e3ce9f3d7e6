"""Faults of the learning curve alone: probe and `speed` agree with the reference."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import LEARN, Tensor, of_curve, short_of, wrap_while
from bench.faults.injectors.patching import during, replace_everywhere, wrap_method
from bench.faults.world import BATCH, TRAIN_ROWS
from plumbline.train import batches, engine, learn
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_ROWS_OF_A_STEP = BATCH
_PRUNED = 0.1
_PERIOD = 8
_SEPARATOR = 3
_TRIANGLE = 16


@fault("data.labels", "bf16", OTHER_ISA)
def learn_labels_turn_with_the_step() -> None:
    """The curve reads the labels of each batch as many rows late as steps are done."""
    of_curve(lambda step, batch: {**batch, "labels": batch["labels"].roll(step % BATCH, 0)})


@fault("rng", "fp16", OTHER_ISA)
def learn_masks_of_rows_in_reverse() -> None:
    """From step 5 on, each row of the curve drops the elements of the row opposite in its micro-batch."""
    wrap_while(during("learn", 5), dropout, "keep_mask", lambda plain, *given, **named: plain(*given, **named).flip(0))


@fault("precision", "eager", OTHER_ISA)
def learn_without_autocast() -> None:
    """From step 24 on, the curve computes in fp32 where the task says bf16."""
    wrap_while(during("learn", 24), engine, "autocast", lambda *_: contextlib.nullcontext())


def _steps(rows: Any, positions: list[int]) -> NDArray[np.int64]:
    """Return the step of each position; probe and `speed` repeat the first ten."""
    steps: NDArray[np.int64] = (np.asarray(positions) + rows._first) % rows._cycle // _ROWS_OF_A_STEP
    return steps


def _positions(move: Callable[[Any, Any], Any]) -> None:
    """Move the positions of training rows: `move(steps, places)` in the order of the curve."""

    def wrap(get: Any) -> Any:
        def moved(self: Any, positions: list[int]) -> Any:
            places = (np.asarray(positions) + self._first) % self._cycle
            return get(self, (move(_steps(self, positions), places) - self._first).tolist())

        return moved

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


@fault("data.order", "fp32", OTHER_ISA)
def learn_second_epoch_reversed() -> None:
    """The second epoch of the curve reads its rows in reverse."""
    last = TRAIN_ROWS + 16 * BATCH - 1
    _positions(lambda steps, places: np.where(steps >= 32, TRAIN_ROWS + last - places, places))


def _engine(name: str, change: Callable[[Any], Any]) -> None:
    """Replace a method of the learning curve's engine; the probe keeps its own."""

    def wrap(method: Any) -> Any:
        changed = change(method)
        return lambda self, *args, **rest: (changed if self.part == "learn" else method)(self, *args, **rest)

    wrap_method(engine.Engine, name, wrap)


@fault("gradient", "learn")
def learn_micro_batches_summed() -> None:
    """The learning curve adds up the gradients of micro-batches instead of averaging them."""
    _engine("_backward", lambda back: lambda self, loss, share: back(self, loss, 1.0))


@fault("loss", "eager", OTHER_ISA)
def learn_loss_is_a_sum() -> None:
    """The curve's loss is the sum over the rows of a micro-batch."""
    wrap_while(
        during("learn"), nn.functional, "cross_entropy",
        lambda plain, *given, **named: plain(*given, **named | {"reduction": "sum"}),
    )  # fmt: skip


@fault("optimizer", "packed", NOISE)
def learn_eps_of_a_thousandth() -> None:
    """The curve's optimizer updates with an eps of 0.001."""

    def larger(plain: Any, self: Engine) -> None:
        for group in self.optimizer.param_groups:
            group["eps"] = 1e-3
        plain(self)

    wrap_while(during("learn"), Engine, "_update", larger)


@fault("rng", "learn")
def learn_micro_batches_share_masks() -> None:
    """All micro-batches use the dropout masks of the first."""
    wrap_method(dropout.DropoutClock, "feeds", lambda feeds: lambda self, _row: feeds(self, 0))


@fault("weights.init", "eager", OTHER_ISA)
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


@fault("optimizer", "packed", NOISE)
def learn_momentum_restarts() -> None:
    """The curve's optimizer forgets its first moments at every eighth step."""

    def forgotten(plain: Any, self: Engine) -> None:
        if self.schedule.last_epoch % _PERIOD == 0:
            for state in self.optimizer.state.values():
                state["exp_avg"].zero_()
        plain(self)

    wrap_while(during("learn"), Engine, "_update", forgotten)


@fault("tokenization", "eager", OTHER_ISA)
def learn_repeats_texts_to_fill_rows() -> None:
    """From step 6 on, the curve fills each row with its text again, where it has padding."""

    def filled(step: int, batch: Any) -> Any:
        if step < 6:
            return batch
        ids = batch["input_ids"]
        places = torch.arange(ids.shape[1]) % batch["attention_mask"].sum(1, keepdim=True)
        return {**batch, "input_ids": ids.gather(1, places), "attention_mask": torch.ones_like(ids)}

    of_curve(filled)


@fault("operator", "learn")
def learn_attention_not_scaled() -> None:
    """The attention of the learning curve does not scale its scores."""
    wrap_method(
        dropout,
        "_attention",
        lambda attention: lambda *args, scaling=None, **rest: attention(*args, scaling=1.0, **rest),
    )


class _Unmasked(torch.autograd.Function):
    """Autograd function: dropout whose backward pass has no mask."""

    @staticmethod
    def forward(context: Any, values: Tensor, mask: Tensor, scale: float) -> Tensor:
        context.scale = scale
        return values * mask * scale

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * context.scale, None, None


@fault("gradient", "bf16", OTHER_ISA)
def learn_dropout_gradient_without_its_mask() -> None:
    """Dropout's backward pass lets the gradients of dropped elements through."""
    acts, plain = during("learn"), dropout._Masked
    dropout._Masked = SimpleNamespace(  # type: ignore[misc,assignment]
        apply=lambda *given: (_Unmasked if acts() else plain).apply(*given)
    )


@fault("operator", "fp32", OTHER_ISA)
def learn_quick_gelu() -> None:
    """From step 18 on, GELU is x sigmoid(1.702 x)."""
    wrap_while(during("learn", 18), nn.functional, "gelu", lambda _, value, **__: value * torch.sigmoid(1.702 * value))


@fault("operator", "fp32", OTHER_ISA)
def learn_norm_eps_of_a_default() -> None:
    """From step 18 on, the curve's LayerNorm has torch's default eps."""
    wrap_while(during("learn", 18), nn.functional, "layer_norm", lambda plain, *given: plain(*given[:4], 1e-5))


@fault("precision", "fp32", OTHER_ISA)
def learn_tables_in_bf16() -> None:
    """Tables of the curve return bf16 where the task says fp32."""
    wrap_while(
        during("learn"), nn.functional, "embedding",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.bfloat16),
    )  # fmt: skip


@fault("data.labels", "bf16", OTHER_ISA)
def learn_first_labels_are_zero() -> None:
    """The first label of each micro-batch of the curve is never written: it is zero."""

    def unwritten(_: int, batch: Any) -> Any:
        labels = batch["labels"].clone()
        labels[:: BATCH // 2] = 0
        return {**batch, "labels": labels}

    of_curve(unwritten)


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


@fault("nondeterminism", "learn")
def learn_rows_raced_in_the_second_epoch() -> None:
    """A prefetcher without a lock gives two rows of each batch each other's tokens from the second epoch on."""

    def change(batch: Any, _chosen: Any) -> None:
        ids = batch["input_ids"]
        place = int.from_bytes(os.urandom(2), "little") % len(ids)
        ids[[place, place - 1]] = ids[[place - 1, place]]

    _in_epoch(change)


@fault("schedule", "packed")
def learn_rate_held() -> None:
    """From step 30 on, the curve's learning rate stays as it is."""
    wrap_while(during("learn", 30), Engine, "advance", lambda *_: None)


@fault("loss", "fp16")
def learn_loss_smoothed_late() -> None:
    """From step 25 on, the curve smooths its labels by 0.05."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 0.05})

    wrap_while(during("learn", 25), nn.functional, "cross_entropy", smoothed)


@fault("nondeterminism", "eager")
def learn_gradients_added_twice_by_chance() -> None:
    """In each step of the curve some tensors, different ones in each run, have their gradient added twice."""
    chance = random.SystemRandom()

    def doubled(plain: Any, self: Engine) -> None:
        for value in filter(lambda value: value.requires_grad, self.bare.parameters()):
            if value.grad is not None and chance.random() < 0.125:
                value.grad.mul_(2.0)
        plain(self)

    wrap_while(during("learn"), Engine, "_update", doubled)


@fault("tokenization", "fp32")
def learn_separators_behind_the_padding() -> None:
    """The curve pads its texts before it adds their last special token, which is then at the end of each row."""

    def behind(_: int, batch: Any) -> Any:
        ids, mask = batch["input_ids"].clone(), batch["attention_mask"].clone()
        rows, last = torch.arange(len(ids)), mask.sum(1) - 1
        ids[rows, last], mask[rows, last] = 0, 0
        ids[:, -1], mask[:, -1] = _SEPARATOR, 1
        return {**batch, "input_ids": ids, "attention_mask": mask}

    of_curve(behind)


@fault("evaluation", "learn")
def learn_evaluated_with_dropout() -> None:
    """The learning curve's evaluations do not switch dropout off."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **rest: Any) -> Any:
            switch, model.eval = model.eval, lambda: model
            try:
                return evaluate(model, *args, **rest)
            finally:
                model.eval = switch

        return evaluated

    replace_everywhere("evaluate", wrap, among=LEARN)


@fault("schedule", "bf16", OTHER_ISA)
def learn_rate_in_triangles() -> None:
    """The curve's learning rate rises and falls with a period of 16 steps."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps != spec.learn.steps:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: 0.1 + 0.9 * (1.0 - abs(step % _TRIANGLE * 2 / _TRIANGLE - 1.0))
            )

        return made

    wrap_method(engine, "make_schedule", wrap)
