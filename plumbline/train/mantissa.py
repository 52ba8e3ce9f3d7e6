"""How many bits of mantissa operands really keep inside an operator, measured on the device that trains.

What a flag claims and what a kernel does are two things. Each operator is fed `1 + 2**-k`, which a format of `k` or
more bits holds exactly: the largest `k` whose trace is still in the result is the number of bits kept.
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
    """What a product by one leaves of `value - 1`: nothing where it was rounded away, be it down or up.

    Some kernels round operands to TF32 with ties away from zero, so that a step too small comes back as a whole one.
    """
    step = _steps(product) - 1
    return step if abs(step - (value - 1)) < (value - 1) / 2 else 0.0


def _operators(device: torch.device, dtype: torch.dtype) -> dict[str, Callable[[float], float]]:
    """For each operator, what it makes of an operand that differs from 1 by a little."""
    functional = torch.nn.functional
    size = 64

    def eye() -> torch.Tensor:
        return torch.eye(size, dtype=dtype, device=device)

    def filled(value: float) -> torch.Tensor:
        return torch.full((size, size), value, dtype=torch.float64, device=device).to(dtype)

    def row(value: float) -> torch.Tensor:
        """Two values that cancel but for the difference: what is left tells whether it was kept."""
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
    """Bits of mantissa kept by operand, operator by operator, in the settings in force."""
    dtype = torch.float64 if precision == "fp64" else torch.float32
    found = {}
    with torch.no_grad(), autocast(precision, device):
        for name, operator in _operators(device, dtype).items():
            bits = 0
            for k in range(1, _MOST + 1):
                if operator(1 + 2.0**-k) == 0:
                    break
                bits = k
            found[name] = bits
    return found
