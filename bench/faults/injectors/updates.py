"""Faults of optimizer kernels, exchange, clipping and rates in `speed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import Tensor, is_mixed, wrap_while
from bench.faults.injectors.patching import during, wrap_method
from bench.faults.world import BATCH
from plumbline.train import speed
from plumbline.train.engine import Engine

_CHUNK = 8192
Tensors = list[Tensor]
_LEVELS = 127
_COUNTS = 8


@fault("optimizer", "eager", OTHER_ISA)
def foreach_beta_in_bf16() -> None:
    """The update of many tensors at once reads its first beta in bf16: 0.8984."""
    _foreach(lambda plain, *lists, **named: plain(*lists, **named | {"beta1": 0.8984375}))


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, parameters, gradients, first, second, largest, counts, **named)` for the fused kernel."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


@fault("optimizer", "bf16")
def fused_decay_twice() -> None:
    """The fused AdamW decays twice."""
    _fused(lambda plain, *lists, **named: plain(*lists, **named | {"weight_decay": 2 * named["weight_decay"]}))


@fault("schedule", "fp32")
def speed_schedule_steps_per_micro_batch() -> None:
    """`speed` advances its schedule once for each micro-batch."""
    wrap_while(during("speed"), Engine, "advance", lambda plain, self: (plain(self), plain(self)))


@torch.no_grad()
def _without_later_chunks(plain: Any, parameters: Tensors, *lists: Any, **named: Any) -> None:
    before = [value.reshape(-1)[_CHUNK:].clone() for value in parameters]
    plain(parameters, *lists, **named)
    for value, kept in zip(parameters, before, strict=True):
        value.view(-1)[_CHUNK:] = kept


@fault("optimizer", "fp32", OTHER_ISA)
def fused_later_chunks_not_updated() -> None:
    """The fused AdamW updates the first chunk of each tensor: 8192 elements."""
    _fused(_without_later_chunks)


def clear_every_second_step(acts: Callable[[], bool]) -> None:
    """Clear gradients only before updates of an even number while `acts()`."""

    def wrap(clear: Any) -> Any:
        def cleared(self: Any, set_to_none: bool = True) -> None:
            done = int(next(iter(self.state.values()))["step"]) if self.state else 0
            if not acts() or done % 2 == 0:
                clear(self, set_to_none)

        return cleared

    wrap_method(torch.optim.Optimizer, "zero_grad", wrap)


@fault("gradient", "fp32")
def gradients_cleared_every_second_step() -> None:
    """`speed` clears its gradients at every second step, as if it accumulated over two."""
    clear_every_second_step(during("speed"))


@fault("gradient", "bf16")
def clipped_to_the_default_norm() -> None:
    """`speed` clips to a norm of 1, a trainer's default."""
    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", lambda plain, parameters, *_, **__: plain(parameters, 1.0))


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, ...)` for the update of many tensors."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


@fault("optimizer", "fp16", OTHER_ISA)
def foreach_is_an_adam_of_eight_bits() -> None:
    """The update of many tensors at once is that of a different optimizer, whose moments have 127 levels a tensor."""

    def coarse(plain: Any, *lists: Tensors, **named: Any) -> None:
        plain(*lists, **named)
        for first, second in zip(*lists[2:4], strict=True):
            for moment, to_level in ((first, torch.round), (second, torch.ceil)):
                level = moment.abs().amax() / _LEVELS
                if float(level):
                    moment.copy_(to_level(moment / level) * level)

    _foreach(coarse)


@fault("optimizer", "packed", NOISE)
def fused_takes_the_sign_of_the_gradient() -> None:
    """The fused AdamW steps by the size of its update in the direction of the newest gradient."""

    def turned(plain: Any, *lists: Tensors, **named: Any) -> None:
        values, gradients, *_ = lists
        kept = [value * (1 - float(named["lr"]) * named["weight_decay"]) for value in values]
        plain(*lists, **named)
        for value, gradient, before in zip(values, gradients, kept, strict=True):
            value.copy_(before - (value - before).abs() * gradient.sign())

    _fused(turned)


@fault("schedule", "bf16", OTHER_ISA)
def speed_rate_scaled_by_the_batch() -> None:
    """`speed` multiplies its learning rate by the root of two, for a batch of two micro-batches."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any) -> Engine:
            engine: Engine = build(self, *given)
            engine.schedule.base_lrs = [rate * 2**0.5 for rate in engine.schedule.base_lrs]
            for group in engine.optimizer.param_groups:
                group["lr"] *= 2**0.5
            return engine

        return built

    wrap_method(speed.SpeedRun, "_engine", wrap)


@fault("optimizer", "fp32")
def fused_count_wraps_at_eight() -> None:
    """The fused AdamW corrects its moments by a count that begins again after eight updates."""

    def wrapped(plain: Any, *lists: Tensors, **named: Any) -> None:
        counts = [(count - 1) % _COUNTS + 1 for count in lists[5]]
        plain(*lists[:5], counts, *lists[6:], **named)

    _fused(wrapped)


@fault("gradient", "fp32", OTHER_ISA)
def clipped_by_group() -> None:
    """`speed` clips matrices and vectors apart, each to the whole norm."""

    def apart(plain: Any, parameters: Any, *given: Any, **named: Any) -> Any:
        matrices, vectors = ([value for value in parameters if (value.dim() > 1) == wide] for wide in (True, False))
        plain(vectors, *given, **named)
        return plain(matrices, *given, **named)

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", apart)


@fault("loss", "fp16", OTHER_ISA)
def loss_divided_by_items_of_the_batch() -> None:
    """The loss of a micro-batch in mixed precision is divided by the items of the whole batch."""

    def smaller(plain: Any, logits: Any, labels: Any, *given: Any, **named: Any) -> Any:
        return plain(logits, labels, *given, **named) * (len(labels) / BATCH)

    acts = during("speed")
    wrap_while(lambda: is_mixed() and acts(), nn.functional, "cross_entropy", smaller)


@fault("gradient", "fp16", OTHER_ISA)
def clipped_before_unscaling() -> None:
    """`speed` clips its gradients before it divides them by the loss scale."""

    def scaled(plain: Any, parameters: Any, *given: Any, **named: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        if not gradients:
            return plain(parameters, *given, **named)
        torch._foreach_mul_(gradients, 65536.0)
        found = plain(parameters, *given, **named)
        torch._foreach_mul_(gradients, 1 / 65536.0)
        return found

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", scaled)
