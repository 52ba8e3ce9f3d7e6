"""Measurement of the mantissa bits that an operator really keeps on this device.

A setting and a kernel may disagree. Each operator gets `1 + 2**-k`, which is exact in a format of `k` or more bits: the
largest `k` that still changes the result is the number of bits kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from plumbline.schema.spec import Precision
from plumbline.train.numerics import autocast

__all__ = ["measure_mantissa_bits"]

_MOST = 52


def _steps(value: torch.Tensor) -> float:
    return float(value.detach().double().reshape(-1)[0])


def _kept(product: torch.Tensor, value: float) -> float:
    """Return the part of `value - 1` that a product by one kept; 0 if rounded away.

    Some kernels round operands to TF32 with ties away from zero, so that a too small step returns as a whole step.
    """
    step = _steps(product) - 1
    return step if abs(step - (value - 1)) < (value - 1) / 2 else 0.0


def _operators(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[float], float]]:
    """Return operators as functions of an operand slightly above 1."""
    functional = torch.nn.functional
    size = 64

    def eye() -> torch.Tensor:
        return torch.eye(size, dtype=dtype, device=device)

    def filled(value: float) -> torch.Tensor:
        return torch.full((size, size), value, dtype=torch.float64, device=device).to(dtype)

    def row(value: float) -> torch.Tensor:
        """Return two values whose difference shows the bits kept."""
        return torch.tensor([[value, 1.0]], dtype=torch.float64, device=device).to(dtype)

    return {
        "linear": lambda value: _kept(functional.linear(filled(value), eye()), value),
        "matmul": lambda value: _kept(torch.matmul(filled(value), eye()), value),
        "bmm": lambda value: _kept(torch.bmm(filled(value)[None], eye()[None]), value),
        "softmax": lambda value: _steps(functional.softmax(row(value), dim=-1).double().diff()),
        "gelu": lambda value: _steps(functional.gelu(row(value)).double().diff()),
        "layer_norm": lambda value: _steps(functional.layer_norm(row(value), (2,), eps=1e-30)),
    }


def measure_mantissa_bits(device: torch.device, precision: Precision) -> dict[str, int]:
    """Return the mantissa bits kept by each operator, in the current settings."""
    dtype = torch.float64 if precision == "fp64" else torch.float32
    kept_bits = {}
    with torch.no_grad(), autocast(precision, device):
        for name, operator in _operators(device, dtype).items():
            bits = 0
            for k in range(1, _MOST + 1):
                if operator(1 + 2.0**-k) == 0:
                    break
                bits = k
            kept_bits[name] = bits
    return kept_bits
