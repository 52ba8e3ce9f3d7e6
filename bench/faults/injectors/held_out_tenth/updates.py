"""Tenth held-out set: faults of optimizer kernels, clipping, loss scaling and rates in `speed`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.injectors.held_out_ninth.updates import _schedule_of_speed
from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from plumbline.train.engine import Engine

Tensor = torch.Tensor
Tensors = list[Tensor]

_COUNTS = 8


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, **named)` for the fused AdamW."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, ...)` for the update of many tensors."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def fused_update_is_a_sign() -> None:
    """The fused AdamW is the kernel of a different optimizer: it steps by the sign of the momentum."""

    def signed(_: Any, *lists: Tensors, **named: Any) -> None:
        rate, decay = float(named["lr"]), named["weight_decay"]
        for value, gradient, first, second in zip(*lists[:4], strict=True):
            first.lerp_(gradient, 1 - named["beta1"])
            second.mul_(named["beta2"]).addcmul_(gradient, gradient, value=1 - named["beta2"])
            value.mul_(1 - rate * decay).sub_(rate * first.sign())

    _fused(signed)


def fused_count_wraps_at_eight() -> None:
    """The fused AdamW corrects its moments by a count that begins again after eight updates."""

    def wrapped(plain: Any, *lists: Tensors, **named: Any) -> None:
        counts = [(count - 1) % _COUNTS + 1 for count in lists[5]]
        plain(*lists[:5], counts, *lists[6:], **named)

    _fused(wrapped)


def foreach_one_second_moment_a_tensor() -> None:
    """The update of many tensors at once has one second moment for each tensor, the mean of its elements."""

    def shared(_: Any, *lists: Tensors, **named: Any) -> None:
        beta1, beta2, rate = named["beta1"], named["beta2"], float(named["lr"])
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            count.add_(1)
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).add_((1 - beta2) * gradient.square().mean())
            size = (second / (1 - beta2 ** float(count))).sqrt() + named["eps"]
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate / (1 - beta1 ** float(count)) * first / size)

    _foreach(shared)


def foreach_momentum_never_decays() -> None:
    """The update of many tensors at once adds to its first moments, and never decays them."""

    def kept(plain: Any, *lists: Any, **named: Any) -> None:
        torch._foreach_div_(lists[2], named["beta1"])
        plain(*lists, **named)

    _foreach(kept)


def scaler_unscales_after_each_micro_batch() -> None:
    """`speed` divides all gradients by the loss scale after each micro-batch, those of earlier ones again."""
    count = [0]

    def unscaled(plain: Any, self: Engine, *given: Any) -> None:
        plain(self, *given)
        count[0] += 1
        if self.scaler and count[0] % self.spec.optimizer.accumulation_steps:
            scale = self.scaler.get_scale()
            for value in self._trainable:
                if value.grad is not None:
                    value.grad.div_(scale)

    wrap_while(during("speed"), Engine, "_backward", unscaled)


def clipped_by_the_largest_entry() -> None:
    """`speed` clips by the largest entry of its gradients, not by their norm."""
    wrap_while(
        during("speed"), nn.utils, "clip_grad_norm_",
        lambda plain, *given, **named: plain(*given, **named | {"norm_type": math.inf}),
    )  # fmt: skip


def speed_rate_without_its_warm_up() -> None:
    """`speed` begins with the highest learning rate."""

    def warm(spec: Any, steps: int) -> tuple[Any, int]:
        return spec.model_copy(update={"schedule": spec.schedule.model_copy(update={"warmup_steps": 0})}), steps

    _schedule_of_speed(warm)
