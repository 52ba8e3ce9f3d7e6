"""Catalogue of portable operations; all others raise an error.

A form takes fp64 tensors and the operation's own arguments. In-place and `out=` variants use the same form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from plumbline.train.failure import TrainingFailedError
from plumbline.train.portable import functions
from plumbline.train.portable.products import embedding_backward, exact_product, index_put, scatter_add, tree_sum

PortableScalar = bool | int | float

_MOST_EXPONENT = 64

BY_CONSTRUCTION: dict[str, tuple[str, ...]] = {
    "copies, views and shapes": (
        "_reshape_alias", "_to_copy", "_unsafe_view", "alias", "as_strided", "cat", "clone", "constant_pad_nd",
        "contiguous", "copy", "detach", "diagonal", "expand", "fill", "flip", "lift_fresh", "narrow", "permute",
        "repeat", "roll", "select", "select_backward", "slice", "slice_backward", "split", "split_with_sizes",
        "squeeze", "stack", "t", "transpose", "tril", "triu", "unbind", "unsqueeze", "view", "zero", "unfold",
        "select_scatter", "slice_scatter",
    ),
    "storages": ("set",),
    "look-ups": ("embedding", "gather", "index", "index_select", "masked_fill", "masked_select", "where"),
    "constants": (
        "arange", "empty", "empty_like", "empty_strided", "full", "full_like", "new_empty", "new_empty_strided",
        "new_full", "new_ones", "new_zeros", "ones", "ones_like", "scalar_tensor", "zeros", "zeros_like",
    ),
    "one IEEE operation": (
        "abs", "ceil", "floor", "mul", "neg", "relu", "round", "sign", "trunc",
        "_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale",
    ),
    "comparisons and choices": (
        "_local_scalar_dense", "all", "amax", "amin", "any", "argmax", "argmin", "clamp", "clamp_max", "clamp_min",
        "copysign", "eq", "equal", "ge", "gt", "isfinite", "isinf", "isnan", "le", "lt", "max", "maximum", "min",
        "minimum", "nan_to_num", "ne", "threshold_backward", "topk", "sort", "_foreach_clamp_max",
        "_foreach_clamp_min", "_foreach_zero", "_foreach_copy",
    ),
}  # fmt: skip
"""Operations that run natively: each result is a copy of an input, or one IEEE operation on inputs."""


class UnportableOperationError(TrainingFailedError):
    """Operation without a portable implementation."""

    def __init__(self, operation: str, reason: str = "") -> None:
        self.operation = operation
        super().__init__(
            f"{operation} has no portable form" + (f" {reason}" if reason else ""), code="portable", part="probe",
            key="portable", hint="see docs/PORTABLE.md for the operations that have one",
        )  # fmt: skip


def _added(fresh: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the sum, in place in `fresh` if shapes allow."""
    return fresh.add_(other) if fresh.shape[fresh.dim() - other.dim() :] == other.shape else fresh + other


def _scaled(values: Any, factor: PortableScalar) -> Any:
    return values if factor == 1 else values * factor


def _add(left: Any, right: Any, *, alpha: PortableScalar = 1) -> torch.Tensor:
    return torch.add(left, _scaled(right, alpha)) if isinstance(left, torch.Tensor) else _scaled(right, alpha) + left


def _sub(left: Any, right: Any, alpha: PortableScalar = 1) -> torch.Tensor:
    result: torch.Tensor = left - _scaled(right, alpha)
    return result


def _rsub(left: torch.Tensor, right: Any, alpha: PortableScalar = 1) -> torch.Tensor:
    return _sub(right, left, alpha)


def _div(left: Any, right: Any, *, rounding_mode: str | None = None) -> torch.Tensor:
    """Divide by an on-device tensor, as CUDA divides inexactly by host scalars."""
    if rounding_mode is not None:
        raise UnportableOperationError("aten.div", f"with rounding_mode={rounding_mode!r}")
    if not isinstance(right, torch.Tensor):
        right = torch.full((), right, dtype=left.dtype if left.is_floating_point() else None, device=left.device)
    if isinstance(left, torch.Tensor) and left.device != right.device:
        right = right.to(left.device)
    return torch.div(left, right)


def _mean(values: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    total = _sum(values, dim, keepdim, dtype=dtype)
    return _div(total, float(values.numel() // max(total.numel(), 1)))


def _sum(values: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> torch.Tensor:
    dims = [dim] if isinstance(dim, int) else dim
    values = values.to(torch.float64) if not values.is_floating_point() else values
    result = tree_sum(values, dims, keepdim=keepdim)
    return result if dtype is None else result.to(dtype)


def _var(
    values: torch.Tensor, dim: Any = None, *, correction: PortableScalar | None = 1, keepdim: bool = False
) -> torch.Tensor:
    centred = values - _mean(values, dim, keepdim=True)
    total = _sum(centred * centred, dim, keepdim)
    count = values.numel() // max(total.numel(), 1) - (1 if correction is None else correction)
    return _div(total, float(count))


def _sgn(values: torch.Tensor) -> torch.Tensor:
    if values.is_complex():
        raise UnportableOperationError("aten.sgn", "of complex numbers")
    return torch.sign(values)


def _logsumexp(values: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim)
    highest = values.amax(dims, keepdim=True)
    highest = torch.where(torch.isfinite(highest), highest, 0.0)
    total = functions.log(tree_sum(functions.exp(values - highest), dims, keepdim=True)) + highest
    return total if keepdim else total.squeeze(dims)


def _pow(base: Any, exponent: Any) -> torch.Tensor:
    """Raise to a multiple of 1/2, by products, square root and reciprocal."""
    if isinstance(base, torch.Tensor) and isinstance(exponent, (int, float)):
        if exponent == 0.5:
            return functions.sqrt(base)
        if float(exponent).is_integer() and 0 <= exponent <= _MOST_EXPONENT:
            result = torch.ones_like(base) if exponent == 0 else base
            for _ in range(int(exponent) - 1):
                result = result * base
            return result.clone() if result is base else result
        if float(2 * exponent).is_integer() and 0 < exponent <= _MOST_EXPONENT:
            return _pow(base, int(exponent)) * functions.sqrt(base)
        if float(2 * exponent).is_integer() and -_MOST_EXPONENT <= exponent < 0:
            return _reciprocal(_pow(base, -exponent))
    raise UnportableOperationError("aten.pow", f"with the exponent {exponent!r}")


def _reciprocal(values: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(values) / values


def _rsqrt(values: torch.Tensor) -> torch.Tensor:
    return _reciprocal(functions.sqrt(values))


def _addcmul(
    start: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, value: PortableScalar = 1
) -> torch.Tensor:
    return _added(_scaled(left, value) * right, start)


def _addcdiv(
    start: torch.Tensor, above: torch.Tensor, below: torch.Tensor, *, value: PortableScalar = 1
) -> torch.Tensor:
    return _added(_scaled(above / below, value), start)


def _lerp(start: torch.Tensor, end: torch.Tensor, weight: Any) -> torch.Tensor:
    return _added((end - start) * weight, start)


def _norm(
    values: torch.Tensor,
    ord: PortableScalar = 2,  # noqa: A002 - torch's own name
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> torch.Tensor:
    if dtype is not None:
        values = values.to(dtype)
    dims = [dim] if isinstance(dim, int) else dim
    if ord == 2:
        return functions.sqrt(tree_sum(values * values, dims, keepdim=keepdim))
    if ord == 1:
        return tree_sum(values.abs(), dims, keepdim=keepdim)
    if ord == math.inf:
        return values.abs().amax(list(range(values.dim())) if dims is None else dims, keepdim=keepdim)
    raise UnportableOperationError("aten.linalg_vector_norm", f"with ord={ord}")


def _foreach_norm(values: Sequence[torch.Tensor], ord: PortableScalar = 2, dtype: Any = None) -> list[torch.Tensor]:  # noqa: A002
    return [_norm(value, ord, dtype=dtype) for value in values]


def _foreach_mul(values: Sequence[torch.Tensor], factor: Any) -> list[torch.Tensor]:
    factors = factor if isinstance(factor, (list, tuple)) else [factor] * len(values)
    return [value * each for value, each in zip(values, factors, strict=True)]


def _tanh_backward(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return gradient * (1.0 - output * output)


def _sigmoid_backward(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return gradient * ((1.0 - output) * output)


FORMS: dict[str, Callable[..., Any]] = {
    "_foreach_mul": _foreach_mul, "_foreach_norm": _foreach_norm, "add": _add, "addcdiv": _addcdiv,
    "addcmul": _addcmul, "cos": functions.cos, "div": _div, "embedding_dense_backward": embedding_backward,
    "erf": functions.erf, "exp": functions.exp, "index_put": index_put, "lerp": _lerp, "linalg_vector_norm": _norm,
    "log": functions.log, "logsumexp": _logsumexp, "mean": _mean, "pow": _pow, "reciprocal": _reciprocal,
    "rsqrt": _rsqrt, "rsub": _rsub, "scatter_add": scatter_add, "sgn": _sgn, "sigmoid": functions.sigmoid,
    "sigmoid_backward": _sigmoid_backward, "sin": functions.sin, "sqrt": functions.sqrt, "sub": _sub, "sum": _sum,
    "tanh": functions.tanh, "tanh_backward": _tanh_backward, "var": _var,
}  # fmt: skip
"""Operations with a form of our own, by their names in `torch.ops.aten`."""


def _product(left: torch.Tensor, right: torch.Tensor, *, slices: int) -> torch.Tensor:
    return exact_product(left, right, slices)


def _with_bias(
    bias: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    slices: int,
    beta: PortableScalar = 1,
    alpha: PortableScalar = 1,
) -> torch.Tensor:
    return _added(_scaled(exact_product(left, right, slices), alpha), _scaled(bias, beta))


PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {"addmm": _with_bias, "bmm": _product, "mm": _product}
"""Matrix products, whose forms also take the number of slices."""
