"""Eleventh held-out set: faults of optimizer kernels, clipping, loss scaling and rates in `speed`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import adam

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import engine
from plumbline.train.optimizers import schedule_factor

Tensor = torch.Tensor
Tensors = list[Tensor]

_WARM_UP, _POSITIONS = 200, 64
_LEAST_RECTIFIED = 5.0
_LEVELS = 127
_MOST = 256.0


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, **named)` for the fused AdamW."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, ...)` for the update of many tensors."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def fused_second_moment_is_a_maximum() -> None:
    """The fused AdamW is the kernel of AdaMax, which divides by the largest gradient so far."""

    def largest(_: Any, *lists: Tensors, **named: Any) -> None:
        rate, beta1 = float(named["lr"]), named["beta1"]
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            first.lerp_(gradient, 1 - beta1)
            second.copy_(torch.maximum(second * named["beta2"], gradient.abs()))
            step = rate / (1 - beta1 ** float(count)) * first / (second + named["eps"])
            value.mul_(1 - rate * named["weight_decay"]).sub_(step)

    _fused(largest)


def fused_updates_the_tied_table_twice() -> None:
    """The fused AdamW updates the table of tokens twice, as it is the weight of two modules."""

    def twice(plain: Any, *lists: Tensors, **named: Any) -> None:
        plain(*lists, **named)
        for place, value in enumerate(lists[0]):
            if value.dim() > 1 and len(value) > _POSITIONS:
                plain(*([values[place]] if values else values for values in lists), **named)

    _fused(twice)


def foreach_update_is_rectified() -> None:
    """The update of many tensors at once is that of RAdam, which has no second moment in its first steps."""

    def rectified(_: Any, *lists: Tensors, **named: Any) -> None:
        beta1, beta2, rate = named["beta1"], named["beta2"], float(named["lr"])
        limit = 2 / (1 - beta2) - 1
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            count.add_(1)
            done = float(count)
            first.lerp_(gradient, 1 - beta1)
            second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            step = first / (1 - beta1**done)
            length = limit - 2 * done * beta2**done / (1 - beta2**done)
            if length > _LEAST_RECTIFIED:
                share = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
                step = step * math.sqrt(share) / ((second / (1 - beta2**done)).sqrt() + named["eps"])
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate * step)

    _foreach(rectified)


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


def scaled_gradients_are_limited() -> None:
    """Loss scaling limits each scaled gradient to 256, as a guard against overflow, before it divides."""

    def wrap(unscale: Any) -> Any:
        def limited(self: Any, optimizer: Any) -> None:
            for group in optimizer.param_groups:
                for value in group["params"]:
                    if value.grad is not None:
                        value.grad.clamp_(-_MOST, _MOST)
            unscale(self, optimizer)

        return limited

    wrap_method(torch.amp.GradScaler, "unscale_", wrap)


def clipped_by_the_norm_of_the_step_before() -> None:
    """`speed` clips its gradients by the norm of the step before, which it need not wait for."""

    def late(_: Any, parameters: Any, most: float, **__: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        known = parameters[0].__dict__
        factor = min(1.0, most / float(known.get("norm_before", most)))
        known["norm_before"] = norm
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", late)


def speed_rate_falls_by_the_inverse_root() -> None:
    """The learning rate of `speed` falls by the inverse square root of the step after its warm-up."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps <= _WARM_UP:
                return make(optimizer, spec, steps)
            warm = spec.schedule.warmup_steps

            def factor(step: int) -> float:
                return (
                    schedule_factor(spec.schedule, step, steps) if step < warm else math.sqrt((warm + 1) / (step + 1))
                )

            return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

        return made

    wrap_method(engine, "make_schedule", wrap)
