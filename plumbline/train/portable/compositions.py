"""Torch functions as textbook compositions of small operations, for autograd.

The same formula in a model's own code gives the same bits, forward and backward.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from plumbline.train.portable.activations import ACTIVATIONS
from plumbline.train.portable.losses import LOSSES, keep_scores
from plumbline.train.portable.operations import UnportableOperationError

__all__ = ["COMPOSITIONS", "bound_compositions"]


def layer_norm(
    values: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> torch.Tensor:  # fmt: skip
    """Normalise in two passes: the mean, then the variance of the centred values."""
    dims = list(range(-len(tuple(normalized_shape)), 0))
    centred = values - values.mean(dims, keepdim=True)
    result = centred * torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def softmax(values: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """Divide exp(x - max) by its sum."""
    values, dim = _typed(values, dim, dtype)
    raised = (values - values.amax(dim, keepdim=True)).exp()
    return raised / raised.sum(dim, keepdim=True)


def log_softmax(values: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """Subtract the logarithm of the sum of exponentials."""
    values, dim = _typed(values, dim, dtype)
    return keep_scores(values - values.logsumexp(dim, keepdim=True), values, dim)


def softmin(values: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """Compute the softmax of -x."""
    return softmax(-values, dim, dtype=dtype)


def _method(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Adapt a softmax to the arguments of `torch.softmax(input, dim, dtype)`."""

    def called(values: torch.Tensor, dim: int, dtype: Any = None, **_: Any) -> torch.Tensor:
        return function(values, dim, dtype=dtype)

    return called


def _typed(values: torch.Tensor, dim: int | None, dtype: Any) -> tuple[torch.Tensor, int]:
    return values if dtype is None else values.to(dtype), -1 if dim is None else dim


def dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: ARG001
    """Return the values unchanged: random masks are not portable."""
    if training and p:
        raise UnportableOperationError("torch.nn.functional.dropout", f"with p={p}")
    return values


def attention(  # noqa: PLR0917 - torch's own arguments
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute softmax(q kᵀ · scale + mask) v, as transformers' eager attention."""
    if dropout_p or enable_gqa:
        raise UnportableOperationError(
            "torch.nn.functional.scaled_dot_product_attention", "with dropout or grouped heads"
        )
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        lowest = torch.full((), torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        attn_mask = torch.where(attn_mask, torch.zeros_like(lowest), lowest)
    scores = scores if attn_mask is None else scores + attn_mask
    return torch.matmul(softmax(scores, -1), value)


COMPOSITIONS: dict[str, Callable[..., torch.Tensor]] = {
    **ACTIVATIONS,
    **LOSSES,
    "torch.layer_norm": layer_norm,
    "torch.log_softmax": _method(log_softmax),
    "torch.nn.functional.dropout": dropout,
    "torch.nn.functional.layer_norm": layer_norm,
    "torch.nn.functional.log_softmax": log_softmax,
    "torch.nn.functional.scaled_dot_product_attention": attention,
    "torch.nn.functional.softmax": softmax,
    "torch.nn.functional.softmin": softmin,
    "torch.softmax": _method(softmax),
    "torch.special.log_softmax": _method(log_softmax),
    "torch.special.softmax": _method(softmax),
    "torch.Tensor.log_softmax": _method(log_softmax),
    "torch.Tensor.softmax": _method(softmax),
}
"""Compositions by the public name of the replaced function."""

_OWNERS = {
    "torch.nn.functional": functional,
    "torch": torch,
    "torch.special": torch.special,
    "torch.Tensor": torch.Tensor,
}


def _owned(name: str) -> Any:
    owner, _, member = name.rpartition(".")
    return getattr(_OWNERS[owner], member)


_ORIGINALS = {name: _owned(name) for name in COMPOSITIONS}


def _with_torchs_names(name: str, form: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Let a composition take `input` and `target` as keywords, and refuse arguments that it does not know."""
    signature = inspect.signature(form)
    renamed = dict(zip(("input", "target"), signature.parameters, strict=False))

    def called(*args: Any, **kwargs: Any) -> torch.Tensor:
        named = {renamed.get(key, key): value for key, value in kwargs.items()}
        try:
            signature.bind(*args, **named)
        except TypeError:
            raise UnportableOperationError(name, "with these arguments") from None
        return form(*args, **named)

    return called


_BOUND = {name: _with_torchs_names(name, form) for name, form in COMPOSITIONS.items()}


def bound_compositions() -> dict[Any, Callable[..., torch.Tensor]]:
    """Return the compositions by the functions that their names refer to, now and at import.

    If a library replaces `torch.nn.functional.softmax` and calls the original, torch reports the original under the
    replacement's name.
    """
    now = {_owned(name): form for name, form in _BOUND.items()}
    return now | {_ORIGINALS[name]: form for name, form in _BOUND.items()}
