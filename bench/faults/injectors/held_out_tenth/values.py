"""Tenth held-out set: values of fewer bits, and values whose gradient is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.faults.injectors.held_out_seventh.places import straight_through

__all__ = ["in_bits", "with_gradient", "with_gradient_of"]

Tensor = torch.Tensor


def in_bits(value: Tensor, bits: int) -> Tensor:
    """Return a value rounded to integers of `bits` bits with a scale for each row, with the gradient of the value."""
    level = value.detach().abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return straight_through(value, (value.detach() / level).round() * level)


def with_gradient(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a view of a value, whose gradient `change` replaces."""
    if value is None or not value.requires_grad:
        return value
    view = value.view_as(value)
    view.register_hook(change)
    return view


class _Shown(torch.autograd.Function):
    """Autograd function: the first value, with the gradient of the second."""

    @staticmethod
    def forward(_context: Any, shown: Tensor, _hidden: Tensor) -> Tensor:
        return shown.clone()

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


def with_gradient_of(shown: Tensor, hidden: Tensor) -> Tensor:
    """Return the bits of `shown`, whose gradient goes through `hidden`."""
    result: Tensor = _Shown.apply(shown, hidden)  # type: ignore[no-untyped-call]
    return result
