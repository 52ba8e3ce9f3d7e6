"""Numbers whose powers and roots do not go through the C library."""

from __future__ import annotations

import math
from typing import Any

import torch

__all__ = ["PortableFloat", "make_portable"]


class PortableFloat(float):
    """A float whose whole powers are running products and whose square root is IEEE's.

    Optimizers compute `1 - beta**step` and its root on the host, where `pow` rounds as the C library pleases.
    """

    def __pow__(self, exponent: Any, modulus: None = None) -> Any:
        """Raise to a whole power, or to one half."""
        if exponent == 0.5:
            return PortableFloat(math.sqrt(self))
        if float(exponent) < 0 or float(exponent) != int(exponent):
            raise ValueError(f"no portable form of the power {exponent}")
        found = 1.0
        for _ in range(int(exponent)):
            found *= float(self)
        return PortableFloat(found)

    def __rsub__(self, other: Any) -> Any:
        """Return `other - self`, as such a number again: its root is taken next."""
        return PortableFloat(float(other) - float(self))


def make_portable(optimizer: torch.optim.Optimizer) -> None:
    """Choose the optimizer's plain implementation, tensor by tensor, and give it portable betas."""
    for group in optimizer.param_groups:
        for name in ("foreach", "fused"):
            if name in group:
                group[name] = False
        if "betas" in group:
            group["betas"] = tuple(PortableFloat(value) for value in group["betas"])
