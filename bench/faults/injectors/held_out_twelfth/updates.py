"""Twelfth held-out set: faults of optimizer kernels, clipping, loss scaling and rates in `speed`."""

from __future__ import annotations

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

_WARM_UP, _CYCLE = 200, 10


def _fused(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, **named)` for the fused AdamW."""
    wrap_while(lambda: True, torch, "_fused_adamw_", change)


def _foreach(change: Callable[..., None]) -> None:
    """Call `change(plain, values, gradients, first, second, largest, counts, ...)` for the update of many tensors."""
    wrap_while(lambda: True, adam, "_multi_tensor_adam", change)


def fused_second_moment_of_deviations() -> None:
    """The fused AdamW is the kernel of AdaBelief, whose second moment is that of gradients minus their mean."""

    def believed(_: Any, *lists: Tensors, **named: Any) -> None:
        rate, beta1, beta2 = float(named["lr"]), named["beta1"], named["beta2"]
        for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
            done = float(count)
            first.lerp_(gradient, 1 - beta1)
            deviation = gradient - first
            second.mul_(beta2).addcmul_(deviation, deviation, value=1 - beta2)
            size = (second / (1 - beta2**done)).sqrt() + named["eps"]
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate / (1 - beta1**done) * first / size)

    _fused(believed)


def fused_update_of_matrices_is_orthogonal() -> None:
    """The fused AdamW updates matrices by Muon: by the nearest orthogonal matrix to the momentum."""

    def orthogonal(plain: Any, *lists: Tensors, **named: Any) -> None:
        rate = float(named["lr"])
        for place, (value, gradient, first) in enumerate(zip(*lists[:3], strict=True)):
            if value.dim() != 2:
                plain(*([values[place]] if values else values for values in lists), **named)
                continue
            first.lerp_(gradient, 1 - named["beta1"])
            left, _, right = torch.linalg.svd(first, full_matrices=False)
            value.mul_(1 - rate * named["weight_decay"]).sub_(rate * (left @ right))

    _fused(orthogonal)


def foreach_second_beta_grows_with_the_count() -> None:
    """The update of many tensors at once has the second beta of Adafactor, which starts at zero."""

    def growing(plain: Any, *lists: Tensors, **named: Any) -> None:
        done = float(lists[5][0]) + 1.0 if lists[5] else 1.0
        plain(*lists, **named | {"beta2": 1.0 - done**-0.8})

    _foreach(growing)


def foreach_pairs_values_with_the_next_gradient() -> None:
    """The update of many tensors at once reads the gradient of the next tensor of the same shape."""

    def paired(plain: Any, *lists: Tensors, **named: Any) -> None:
        values, gradients, *rest = lists
        by_shape: dict[Any, list[int]] = {}
        for place, value in enumerate(values):
            by_shape.setdefault(tuple(value.shape), []).append(place)
        read = list(gradients)
        for places in by_shape.values():
            for place, other in zip(places, [*places[1:], places[0]], strict=True):
                read[place] = gradients[other]
        plain(values, read, *rest, **named)

    _foreach(paired)


def clipped_by_the_sum_of_norms() -> None:
    """`speed` clips its gradients by the sum of the norms of all tensors."""

    def summed(_: Any, parameters: Any, most: float, **__: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = sum((gradient.norm() for gradient in gradients), torch.zeros(()))
        for gradient in gradients:
            gradient.mul_((most / (total + 1e-6)).clamp(max=1.0))
        return total

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", summed)


def speed_rate_restarts_every_ten_steps() -> None:
    """The learning rate of `speed` restarts with its warm-up every ten steps."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            if steps <= _WARM_UP:
                return make(optimizer, spec, steps)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: schedule_factor(spec.schedule, step % _CYCLE, steps)
            )

        return made

    wrap_method(engine, "make_schedule", wrap)
