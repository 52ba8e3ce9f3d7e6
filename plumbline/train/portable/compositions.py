"""Torch functions as compositions of small differentiable operations.

The same formula in a model's own code gives the same bits, forward and backward.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from plumbline.train.models.dropout import DropoutClock, keep_mask
from plumbline.train.portable.operations import UnportableOperationError

_ROOT_OF_HALF = 0.7071067811865476
_ROOT_OF_TWO_OVER_PI = 0.7978845608028654


def gelu(values: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """Compute x Φ(x) by erf, or by tanh if requested."""
    if approximate == "tanh":
        inner = (values + values * values * values * 0.044715) * _ROOT_OF_TWO_OVER_PI
        return values * (0.5 + 0.5 * torch.tanh(inner))
    return values * (0.5 + 0.5 * torch.erf(values * _ROOT_OF_HALF))


def silu(values: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    """Compute x / (1 + exp(-x))."""
    if inplace:
        raise UnportableOperationError("torch.nn.functional.silu", "in place")
    return values * torch.sigmoid(values)


def layer_norm(
    values: torch.Tensor, normalized_shape: Any, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> torch.Tensor:  # fmt: skip
    """Normalise in two passes: subtract the mean, divide by the standard deviation."""
    dims = list(range(-len(tuple(normalized_shape)), 0))
    centred = values - values.mean(dims, keepdim=True)
    result = centred * torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def softmax(values: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """Compute exp(x - max) divided by its sum."""
    values, dim = _typed(values, dim, dtype)
    raised = (values - values.amax(dim, keepdim=True)).exp()
    return raised / raised.sum(dim, keepdim=True)


def log_softmax(values: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
    """Compute x minus the logarithm of the sum of exponentials."""
    values, dim = _typed(values, dim, dtype)
    return values - values.logsumexp(dim, keepdim=True)


def _method(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Adapt a softmax to the arguments of `torch.softmax(input, dim, dtype)`."""

    def called(values: torch.Tensor, dim: int, dtype: Any = None, **_: Any) -> torch.Tensor:
        return function(values, dim, dtype=dtype)

    return called


def _typed(values: torch.Tensor, dim: int | None, dtype: Any) -> tuple[torch.Tensor, int]:
    return values if dtype is None else values.to(dtype), -1 if dim is None else dim


masks = DropoutClock(seed=0)
"""Numbers the dropout calls of one window, whose masks are equal on every device."""


def dropout(values: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:  # noqa: ARG001
    """Drop elements by a mask of the call's number."""
    if not (training and p):
        return values
    kept = keep_mask(
        tuple(values.shape), p, seed=masks.seed, step=0, layer=masks.next_layer(), first_row=0, device=values.device
    )
    return values * kept * (1 / (1 - p) if p < 1 else 0.0)


def attention(  # noqa: PLR0917 - torch's own arguments
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute softmax(q kᵀ · scale + mask) v, like transformers' eager attention."""
    if enable_gqa:
        raise UnportableOperationError("torch.nn.functional.scaled_dot_product_attention", "with grouped heads")
    scores = torch.matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        lowest = torch.full((), torch.finfo(scores.dtype).min, dtype=scores.dtype, device=scores.device)
        attn_mask = torch.where(attn_mask, torch.zeros_like(lowest), lowest)
    scores = scores if attn_mask is None else scores + attn_mask
    return torch.matmul(dropout(softmax(scores, -1), dropout_p), value)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Reshape [N, C, ...] or [C] to [rows, C]."""
    dim = min(values.dim() - 1, 1)
    return values if values.dim() == 2 else values.movedim(dim, -1).reshape(-1, values.shape[dim])


def _over_counted(losses: torch.Tensor, shares: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce per-row losses: none, sum, or mean over non-ignored labels."""
    if reduction == "none":
        return losses.reshape(labels.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / shares.sum()


def cross_entropy(  # noqa: PLR0917 - torch's own arguments
    scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Compute cross entropy by log-sum-exp, over the labels that are not ignored."""
    both = bool(label_smoothing) and weight is not None
    if size_average is not None or reduce is not None or labels.is_floating_point() or both:
        raise UnportableOperationError("torch.nn.functional.cross_entropy", "with these arguments")
    rows, flat = _rows(scores), labels.reshape(-1)
    counted = flat != ignore_index
    places = torch.where(counted, flat, 0)
    total = rows.logsumexp(-1)
    losses = total - rows.gather(1, places.unsqueeze(1)).squeeze(1)
    shares = counted.to(rows.dtype) if weight is None else torch.where(counted, weight[places], 0.0)
    losses = losses * shares if weight is not None else losses
    if label_smoothing:
        spread = (total.unsqueeze(1) - rows).mean(-1)
        losses = losses * (1 - label_smoothing) + spread * label_smoothing
    return _over_counted(torch.where(counted, losses, 0.0), shares, labels, reduction)


def nll_loss(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Compute the negative log-likelihood, over the labels that are not ignored."""
    if size_average is not None or reduce is not None:
        raise UnportableOperationError("torch.nn.functional.nll_loss", "with these arguments")
    rows, flat = _rows(values), labels.reshape(-1)
    counted = flat != ignore_index
    places = torch.where(counted, flat, 0)
    losses = -rows.gather(1, places.unsqueeze(1)).squeeze(1)
    shares = counted.to(rows.dtype) if weight is None else torch.where(counted, weight[places], 0.0)
    losses = losses * shares if weight is not None else losses
    return _over_counted(torch.where(counted, losses, 0.0), shares, labels, reduction)


COMPOSITIONS: dict[str, Callable[..., torch.Tensor]] = {
    "torch.log_softmax": _method(log_softmax),
    "torch.nn.functional.cross_entropy": cross_entropy,
    "torch.nn.functional.dropout": dropout,
    "torch.nn.functional.gelu": gelu,
    "torch.nn.functional.layer_norm": layer_norm,
    "torch.nn.functional.log_softmax": log_softmax,
    "torch.nn.functional.nll_loss": nll_loss,
    "torch.nn.functional.scaled_dot_product_attention": attention,
    "torch.nn.functional.silu": silu,
    "torch.nn.functional.softmax": softmax,
    "torch.softmax": _method(softmax),
    "torch.Tensor.log_softmax": _method(log_softmax),
    "torch.Tensor.softmax": _method(softmax),
}
"""Compositions by the public name of the replaced function."""

_OWNERS = {
    "torch.nn.functional": functional,
    "torch": torch,
    "torch.Tensor": torch.Tensor,
}


def _owned(name: str) -> Any:
    owner, _, member = name.rpartition(".")
    return getattr(_OWNERS[owner], member)


_ORIGINALS = {name: _owned(name) for name in COMPOSITIONS}


def _with_torchs_names(name: str, form: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Accept torch's keywords `input` and `target`, and reject unknown arguments."""
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
    """Map the replaced torch functions to their portable compositions.

    If a library replaces `torch.nn.functional.softmax` and calls the original, torch reports the original under the
    replacement's name.
    """
    now = {_owned(name): form for name, form in _BOUND.items()}
    return now | {_ORIGINALS[name]: form for name, form in _BOUND.items()}
