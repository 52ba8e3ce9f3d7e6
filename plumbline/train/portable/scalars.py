"""Python floats whose powers and roots do not use the C library."""

from __future__ import annotations

import math
from typing import Any

import torch

_MOST_PRODUCTS = 256
"""Largest exponent of plain repeated products; larger ones are squared, as a step of a learning curve may be."""


class PortableFloat(float):
    """Float with powers by repeated products and the IEEE square root.

    Optimizers compute `1 - beta**step` and its root on the host, where `pow` rounds differently per C library.
    """

    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        """Raise to an integer power, or to 0.5."""
        if exponent == 0.5:
            return PortableFloat(math.sqrt(self))
        if float(exponent) < 0 or float(exponent) != int(exponent):
            raise ValueError(f"no portable form of the power {exponent}")
        result, factor, left = 1.0, float(self), int(exponent)
        if left > _MOST_PRODUCTS:
            while left:
                result, factor, left = result * factor if left & 1 else result, factor * factor, left >> 1
            return PortableFloat(result)
        for _ in range(left):
            result *= factor
        return PortableFloat(result)

    def __rsub__(self, other: Any) -> Any:
        """Return `other - self` as a `PortableFloat`, as its root follows."""
        return PortableFloat(float(other) - float(self))


def make_portable(optimizer: torch.optim.Optimizer) -> None:
    """Use the optimizer's plain implementation, with portable betas."""
    for group in optimizer.param_groups:
        for name in ("foreach", "fused"):
            if name in group:
                group[name] = False
        if "betas" in group:
            group["betas"] = tuple(PortableFloat(value) for value in group["betas"])
