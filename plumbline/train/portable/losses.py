"""Losses of torch as textbook compositions of small operations, for autograd.

A loss takes the arguments of its torch function. The deprecated `size_average` and `reduce` are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch

from plumbline.train.portable.activations import above_zero
from plumbline.train.portable.operations import UnportableOperationError

__all__ = ["LOSSES", "keep_scores"]

_KEPT = "_plumbline_scores"
"""Attribute of a log-softmax: the scores and the dimension that it was made from."""
_VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})
"""Nodes of autograd that keep the logical order of a tensor's elements."""
_LEAST_LOG = -100.0
"""Lower bound of a logarithm in torch's binary cross entropy."""


def keep_scores(log_softmax: torch.Tensor, scores: torch.Tensor, dim: int) -> torch.Tensor:
    """Note the scores of a log-softmax, for `nll_loss`; return the log-softmax."""
    setattr(log_softmax, _KEPT, (scores, dim % max(scores.dim(), 1)))
    return log_softmax


def _kept_scores(values: torch.Tensor) -> torch.Tensor | None:
    """Return the scores of which `values` is the log-softmax, in the shape of `values`.

    The log-softmax may have been flattened to rows by a view. `None` if a different operation, an edit in place or a
    gradient's hook follows the log-softmax.
    """
    whole, node = values, values.grad_fn
    base = values._base  # noqa: SLF001 - torch has no public name for the tensor of a view
    if node is not None and node.name() in _VIEWS and base is not None:
        whole, node = base, node.next_functions[0][0]
    scores, dim = getattr(whole, _KEPT, (None, 0))
    edited = whole._version > 0  # noqa: SLF001 - nor for the number of edits in place
    if scores is None or node is None or node is not whole.grad_fn or edited:
        return None
    if any(tensor._backward_hooks or tensor.retains_grad for tensor in (values, whole)):  # noqa: SLF001 - nor for hooks
        return None
    flattened = values.dim() == 2 and dim == whole.dim() - 1 and values.shape[1] == whole.shape[-1]
    same_class = values.shape == whole.shape and dim == _class_dim(values)
    found: torch.Tensor = scores
    return found.reshape(values.shape) if flattened or same_class else None


def _class_dim(values: torch.Tensor) -> int:
    return min(values.dim() - 1, 1)


def _rows(values: torch.Tensor) -> torch.Tensor:
    """Return [N, C, ...] or [C] as [rows, C]."""
    return (
        values
        if values.dim() == 2
        else values.movedim(_class_dim(values), -1).reshape(-1, values.shape[_class_dim(values)])
    )


def _check(name: str, *refused: Any, reason: str = "with these arguments") -> None:
    if any(value is not None and value is not False for value in refused):
        raise UnportableOperationError(f"torch.nn.functional.{name}", reason)


def _reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else losses.mean()


def _over_counted(losses: torch.Tensor, shares: torch.Tensor, labels: torch.Tensor, reduction: str) -> torch.Tensor:
    """Reduce a loss per row; the mean is over the shares of the counted labels."""
    if reduction == "none":
        return losses.reshape(labels.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / shares.sum()


def cross_entropy(  # noqa: PLR0917 - torch's own arguments
    scores: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """Compute log-sum-exp minus the label's score, over the counted labels."""
    _check("cross_entropy", size_average, reduce, labels.is_floating_point())
    if label_smoothing:
        _check("cross_entropy", weight, reason="with smoothing and weights")
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
    """Compute minus the label's log-probability, over the counted labels.

    The loss of a log-softmax is the cross entropy of its scores. Both have the same bits: the gradient of a look-up is
    an integer sum, which rounds, and the cross entropy's sum over a row does not pass through it.
    """
    scores = _kept_scores(values)
    if scores is not None:
        return cross_entropy(scores, labels, weight, size_average, ignore_index, reduce, reduction)
    _check("nll_loss", size_average, reduce)
    rows, flat = _rows(values), labels.reshape(-1)
    counted = flat != ignore_index
    places = torch.where(counted, flat, 0)
    losses = -rows.gather(1, places.unsqueeze(1)).squeeze(1)
    shares = counted.to(rows.dtype) if weight is None else torch.where(counted, weight[places], 0.0)
    losses = losses * shares if weight is not None else losses
    return _over_counted(torch.where(counted, losses, 0.0), shares, labels, reduction)


def binary_cross_entropy_with_logits(  # noqa: PLR0917 - torch's own arguments
    scores: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean", pos_weight: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute max(x, 0) - x t + log(1 + exp(-|x|)), or (1 - t) x + (1 + (p - 1) t) (max(-x, 0) + log(...))."""
    _check("binary_cross_entropy_with_logits", size_average, reduce)
    if pos_weight is None:
        losses = above_zero(scores) - scores * targets + (1.0 + (-scores.abs()).exp()).log()
    else:
        softplus = above_zero(-scores) + (1.0 + (-scores.abs()).exp()).log()
        losses = (1.0 - targets) * scores + (1.0 + (pos_weight - 1.0) * targets) * softplus
    return _reduced(losses if weight is None else losses * weight, reduction)


def binary_cross_entropy(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """Compute -t log(p) - (1 - t) log(1 - p), with logarithms of at least -100."""
    _check("binary_cross_entropy", size_average, reduce)
    yes, no = values.log().clamp(min=_LEAST_LOG), (-values).log1p().clamp(min=_LEAST_LOG)
    losses = -(targets * yes + (1.0 - targets) * no)
    return _reduced(losses if weight is None else losses * weight, reduction)


def mse_loss(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, targets: torch.Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute d² of the difference d."""
    _check("mse_loss", size_average, reduce, weight)
    difference = values - targets
    return _reduced(difference * difference, reduction)


def l1_loss(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, targets: torch.Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", weight: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute |d| of the difference d."""
    _check("l1_loss", size_average, reduce, weight)
    return _reduced((values - targets).abs(), reduction)


def huber_loss(
    values: torch.Tensor, targets: torch.Tensor, reduction: str = "mean", delta: float = 1.0,
    weight: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute d² / 2 up to `delta`, and delta (|d| - delta / 2) beyond."""
    _check("huber_loss", weight)
    size = (values - targets).abs()
    return _reduced(torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


def smooth_l1_loss(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, targets: torch.Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", beta: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """Compute d² / (2 beta) below `beta`, and |d| - beta / 2 beyond."""
    _check("smooth_l1_loss", size_average, reduce)
    size = (values - targets).abs()
    if not beta:
        return _reduced(size, reduction)
    return _reduced(torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta), reduction)


def kl_div(  # noqa: PLR0917 - torch's own arguments
    values: torch.Tensor, targets: torch.Tensor, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", log_target: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute t log(t) - t x, or exp(t) (t - x) of logarithmic targets."""
    _check("kl_div", size_average, reduce)
    if log_target:
        losses = targets.exp() * (targets - values)
    else:
        losses = targets * torch.where(targets == 0, 1.0, targets).log() - targets * values
    return losses.sum() / float(values.shape[0]) if reduction == "batchmean" else _reduced(losses, reduction)


LOSSES = {
    f"torch.nn.functional.{loss.__name__}": loss
    for loss in (
        binary_cross_entropy, binary_cross_entropy_with_logits, cross_entropy, huber_loss, kl_div, l1_loss, mse_loss,
        nll_loss, smooth_l1_loss,
    )
}  # fmt: skip
"""Losses by the public name of the replaced function."""
