"""Activations of torch as textbook compositions of small operations, for autograd."""

from __future__ import annotations

import torch

from plumbline.train.portable.operations import UnportableOperationError

__all__ = ["ACTIVATIONS", "above_zero"]

_ROOT_OF_HALF = 0.7071067811865476
_ROOT_OF_TWO_OVER_PI = 0.7978845608028654


def _refuse_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise UnportableOperationError(f"torch.nn.functional.{name}", "in place")


def above_zero(values: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0), with the slope 1/2 at 0: the smooth functions made from it need that slope."""
    return torch.where(values == 0, values * 0.5, values.clamp(min=0))


def gelu(values: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Compute x Φ(x) by erf, or by tanh if requested."""
    if approximate == "tanh":
        inner = (values + values * values * values * 0.044715) * _ROOT_OF_TWO_OVER_PI
        return values * (0.5 + 0.5 * torch.tanh(inner))
    return values * (0.5 + 0.5 * torch.erf(values * _ROOT_OF_HALF))


def glu(values: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """Compute a / (1 + exp(-b)) of the two halves a and b."""
    left, right = values.chunk(2, dim)
    return left * torch.sigmoid(right)


def leaky_relu(values: torch.Tensor, negative_slope: float = 0.01, inplace: bool = False) -> torch.Tensor:
    """Compute x above 0, and x times the slope elsewhere."""
    _refuse_in_place("leaky_relu", inplace)
    return torch.where(values > 0, values, values * negative_slope)


def logsigmoid(values: torch.Tensor) -> torch.Tensor:
    """Compute -log(1 + exp(-x))."""
    return -_softplus(-values)


def mish(values: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Compute x tanh(log(1 + exp(x)))."""
    _refuse_in_place("mish", inplace)
    return values * torch.tanh(_softplus(values))


def silu(values: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Compute x / (1 + exp(-x))."""
    _refuse_in_place("silu", inplace)
    return values * torch.sigmoid(values)


def softplus(values: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    """Compute log(1 + exp(beta x)) / beta; x where beta x is above the threshold."""
    scaled = values * beta
    return torch.where(scaled > threshold, values, _softplus(scaled) / beta)


def _softplus(values: torch.Tensor) -> torch.Tensor:
    return above_zero(values) + (-values.abs()).exp().log1p()


ACTIVATIONS = {
    f"torch.nn.functional.{activation.__name__}": activation
    for activation in (gelu, glu, leaky_relu, logsigmoid, mish, silu, softplus)
}
"""Activations by the public name of the replaced function."""
