"""Thirteenth held-out set: faults of optimizer kernels, exchanged gradients, clipping and rates in `speed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine
from plumbline.train.engine import Engine
from plumbline.train.optimizers import schedule_factor

Tensor = torch.Tensor
Tensors = list[Tensor]

_WARM_UP = 200
_SLOW, _SHARE = 0.99, 5.0
"""Decay of the slow moment, and its weight in the update."""


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, **named)` for the fused AdamW."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, ...)` for the update of many tensors."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def fused_divides_by_the_second_moment_before() -> None:
    """The fused AdamW is the kernel of ADOPT, which divides by the second moment before the newest gradient."""

    def adopted(_: Any, *lists: Tensors, **named: Any) -> None:
        rate, beta1, beta2 = float(named["lr"]), named["beta1"], named["beta2"]
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            done, known = float(count), second.clone()
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            used = known if done > 1 else second
            size = (used / (1 - beta2 ** max(done - 1, 1))).sqrt() + named["eps"]
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate / (1 - beta1**done) * first / size)

    _fused(adopted)


def fused_takes_the_sign_of_the_gradient() -> None:
    """The fused AdamW steps by the size of its update in the direction of the newest gradient."""

    def turned(plain: Any, *lists: Tensors, **named: Any) -> None:
        values, gradients, *_ = lists
        kept = [value * (1 - float(named["lr"]) * named["weight_decay"]) for value in values]
        plain(*lists, **named)
        for value, gradient, before in zip(values, gradients, kept, strict=True):
            value.copy_(before - (value - before).abs() * gradient.sign())

    _fused(turned)


def foreach_adds_a_slow_moment() -> None:
    """The update of many tensors at once is that of AdEMAMix, which adds a slow moment of the gradients."""
    slow: dict[Tensor, Tensor] = {}

    def mixed(plain: Any, *lists: Tensors, **named: Any) -> None:
        plain(*lists, **named)
        for value, gradient, second, count in zip(lists[0], lists[1], lists[3], lists[5], strict=True):
            moment = slow.setdefault(value, torch.zeros_like(value)).lerp_(gradient, 1 - _SLOW)
            size = (second / (1 - named["beta2"] ** float(count))).sqrt() + named["eps"]
            value.sub_(float(named["lr"]) * _SHARE * moment / size)

    _foreach(mixed)


def foreach_second_moment_of_absolute_values() -> None:
    """The update of many tensors at once divides by the mean of absolute gradients, not by the root of squares."""

    def absolute(_: Any, *lists: Tensors, **named: Any) -> None:
        rate, beta1, beta2 = float(named["lr"]), named["beta1"], named["beta2"]
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            done = float(count.add_(1))
            first.lerp_(gradient, 1 - beta1)
            second.lerp_(gradient.abs(), 1 - beta2)
            size = second / (1 - beta2**done) + named["eps"]
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate / (1 - beta1**done) * first / size)

    _foreach(absolute)


def clipped_by_the_sum_of_absolute_values() -> None:
    """`speed` clips its gradients by the sum of their absolute values, a norm of order one."""

    def clipped(plain: Any, parameters: Any, most: float, **named: Any) -> Any:
        return plain(parameters, most, **named | {"norm_type": 1.0})

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", clipped)


def speed_exchanges_gradients_of_rank_one() -> None:
    """`speed` exchanges each matrix of gradients by its product of two vectors, and keeps no remainder."""

    def exchanged(plain: Any, self: Engine) -> None:
        for value in self._trainable:
            if value.grad is not None and value.dim() == 2:
                left, sizes, right = torch.linalg.svd(value.grad.float(), full_matrices=False)
                value.grad.copy_(sizes[0] * left[:, :1] @ right[:1])
        plain(self)

    wrap_while(during("speed"), Engine, "_update", exchanged)


def speed_warms_up_by_a_share() -> None:
    """`speed` warms up over a tenth of its steps, which a trainer prefers to the number of steps that is asked for."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps <= _WARM_UP:
                return make(optimizer, spec, steps)
            schedule = spec.schedule.replace(warmup_steps=steps // 10)
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule_factor(schedule, step, steps))

        return made

    wrap_method(engine, "make_schedule", wrap)
