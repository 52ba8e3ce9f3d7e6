"""Ninth held-out set: faults of optimizer kernels, clipping, loss scaling and rates in `speed`."""

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

Tensor = torch.Tensor

_WARM_UP = 200
"""Steps that `speed` may train beside the measured ones: its schedule has more steps than that of any other part."""


def _update(*lists: Any, size: Callable[..., Tensor], **named: Any) -> None:
    """Update as AdamW does, by the `size(second, count, beta, eps)` of the second moments."""
    first_beta, beta, rate = named["beta1"], named["beta2"], float(named["lr"])
    for value, gradient, first, second, count in zip(*lists[:4], lists[5], strict=True):
        first.lerp_(gradient, 1 - first_beta)
        second.mul_(beta).addcmul_(gradient, gradient, value=1 - beta)
        value.mul_(1 - rate * named["weight_decay"])
        step = rate / (1 - first_beta ** float(count))
        value.sub_(step * first / size(second, float(count), beta, named["eps"]))


def _fused(size: Callable[..., Tensor]) -> None:
    """Give the fused AdamW a different size of its second moments."""
    wrap_while(
        lambda: True, torch, "_fused_adamw_", lambda _, *lists, **named: _update(*lists, size=size, **named)
    )  # fmt: skip


def fused_correction_without_its_root() -> None:
    """The fused AdamW divides by the correction of second moments, not by its root."""
    _fused(lambda second, count, beta, eps: second.sqrt() / (1 - beta**count) + eps)


def foreach_trust_ratio_of_lamb() -> None:
    """The update of many tensors at once is LAMB's: scaled by the norm of the weights."""

    def scaled(plain: Any, values: list[Tensor], *lists: Any, **named: Any) -> None:
        before = [value.clone() for value in values]
        plain(values, *lists, **named)
        for value, old in zip(values, before, strict=True):
            step, size = (value - old) / float(named["lr"]), float(old.norm())
            ratio = size / float(step.norm()) if size and float(step.norm()) else 1.0
            value.copy_(old + step * float(named["lr"]) * ratio)

    wrap_while(lambda: True, adam, "_multi_tensor_adam", scaled)


def foreach_moments_shared_by_shape() -> None:
    """Tensors of one shape start each update from the moments of the first of them."""

    def shared(plain: Any, values: list[Tensor], *lists: Any, **named: Any) -> None:
        first: dict[Any, int] = {}
        for place, value in enumerate(values):
            owner = first.setdefault(tuple(value.shape), place)
            for moments in lists[1:3]:
                moments[place].copy_(moments[owner])
        plain(values, *lists, **named)

    wrap_while(lambda: True, adam, "_multi_tensor_adam", shared)


def speed_gradients_over_a_loss_scale() -> None:
    """`speed` divides its gradients by a loss scale that its loss never had."""
    wrap_while(
        during("speed"), Engine, "_backward", lambda plain, self, loss, share: plain(self, loss, share / 65536)
    )  # fmt: skip


def clipped_by_group() -> None:
    """`speed` clips matrices and vectors apart, each to the whole norm."""

    def apart(plain: Any, parameters: Any, *given: Any, **named: Any) -> Any:
        matrices, vectors = ([value for value in parameters if (value.dim() > 1) == wide] for wide in (True, False))
        plain(vectors, *given, **named)
        return plain(matrices, *given, **named)

    wrap_while(during("speed"), nn.utils, "clip_grad_norm_", apart)


def _schedule_of_speed(change: Callable[[Any, int], tuple[Any, int]]) -> None:
    """Change the spec and the number of steps of the schedule of `speed`."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            return make(optimizer, *(change(spec, steps) if steps > _WARM_UP else (spec, steps)))

        return made

    wrap_method(engine, "make_schedule", wrap)


def warm_up_of_samples(spec: Any, steps: int) -> tuple[Any, int]:
    """Return a schedule that counts its warm-up in rows."""
    longer = spec.schedule.model_copy(update={"warmup_steps": spec.schedule.warmup_steps * spec.batch_size})
    return spec.model_copy(update={"schedule": longer}), steps


def speed_decays_within_the_measured_steps() -> None:
    """The learning rate of `speed` is zero once as many steps are done as are measured."""
    _schedule_of_speed(lambda spec, steps: (spec, steps - _WARM_UP))
