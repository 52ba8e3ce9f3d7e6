"""Seventh held-out set: when a fault acts, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.faults.injectors.patching import during, wrap_method

__all__ = ["during", "is_mixed", "is_short", "is_unstrict", "short_of", "straight_through", "wrap_while"]


def is_mixed() -> bool:
    """Return whether autocast is on: a kernel of bf16 or fp16 is chosen."""
    return torch.is_autocast_enabled("cpu")


def is_unstrict() -> bool:
    """Return whether kernels may be chosen that are not deterministic, as in `speed`."""
    return not torch.are_deterministic_algorithms_enabled()


def is_short(value: torch.Tensor) -> bool:
    """Return whether a tensor has 16 bits."""
    return value.dtype in {torch.bfloat16, torch.float16}


def wrap_while(acts: Callable[[], bool], owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Call `change(plain, ...)` instead of a function while `acts()`."""
    wrap_method(
        owner, name,
        lambda plain: lambda *given, **named: change(plain, *given, **named) if acts() else plain(*given, **named),
    )  # fmt: skip


def straight_through(value: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return the rounded value, with the gradient of the value."""
    return value + (rounded.to(value.dtype) - value).detach()


def short_of(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a value rounded to a shorter format, in its own dtype."""
    return straight_through(value, value.detach().to(dtype))
