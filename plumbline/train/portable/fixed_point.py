"""Exact scattered sums in 64-bit integers, independent of order."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from plumbline.train.portable.functions import power_of_two

_BITS = 62
_LEAST_EXPONENT = -900


def summed_as_integers(
    values: torch.Tensor, terms: int, scatter: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Scatter fp64 `values` as integers whose sum of `terms` stays below 2**62."""
    largest = values.abs().amax() if values.numel() else values.new_zeros(())
    exponent = (((largest.view(torch.int64) >> 52) & 0x7FF) - 1022).clamp_(_LEAST_EXPONENT, 1023)
    bits = _BITS - math.ceil(math.log2(max(terms, 1)))
    # Two factors, as a single factor may exceed fp64's range.
    grid = bits - exponent
    half = grid // 2
    scaled = values * power_of_two(half.clamp(-1022, 1023))
    scaled.mul_(power_of_two((grid - half).clamp(-1022, 1023)))
    sums = scatter(scaled.round_().nan_to_num_(nan=0.0).to(torch.int64)).to(torch.float64)
    sums.mul_(power_of_two((-half).clamp(-1022, 1023)))
    sums.mul_(power_of_two((half - grid).clamp(-1022, 1023)))
    return torch.where(torch.isfinite(largest), sums, float("nan"))
