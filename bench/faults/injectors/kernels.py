"""The same formula, rounded otherwise, by nothing that a fingerprint shows: a library replaced in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.held_out_training import _own_update


def softmax_spelt_out() -> None:
    """The softmax as exponentials and their sum."""

    def spelt_out(value: Any, dim: int | None = None, **_rest: Any) -> Any:
        raised = (value - value.amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)

    functional.softmax = spelt_out


def layer_norm_in_two_passes() -> None:
    """LayerNorm with its mean first and its variance after."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        centred = value - value.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def linear_summed_in_fp64() -> None:
    """Products of matrices summed in fp64 and rounded once."""

    def linear(x: Any, w: Any, b: Any = None) -> Any:
        product = (x.double() @ w.double().t()).to(x.dtype)
        return product if b is None else product + b

    functional.linear = linear


def linear_in_halves() -> None:
    """Products of matrices summed in two halves."""

    def halves(x: Any, w: Any, b: Any = None) -> Any:
        half = x.shape[-1] // 2
        product = x[..., :half] @ w[:, :half].t() + x[..., half:] @ w[:, half:].t()
        return product if b is None else product + b

    functional.linear = halves


def gelu_by_its_formula() -> None:
    """GELU as products with the error function."""
    functional.gelu = lambda value, approximate="none": value * 0.5 * (1.0 + torch.erf(value / math.sqrt(2.0)))


def entropy_by_its_formula() -> None:
    """Cross entropy as a log-sum-exp less the label's score."""

    def entropy(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()

    functional.cross_entropy = entropy


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass sums in fp64."""

    @staticmethod
    def forward(context: Any, x: Any, w: Any, b: Any) -> Any:
        context.save_for_backward(x, w)
        return _LINEAR(x, w, b)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        x, w = context.saved_tensors
        back = gradients[0].double()
        flat = back.reshape(-1, back.shape[-1])
        weight = flat.t() @ x.double().reshape(-1, x.shape[-1])
        return (back @ w.double()).to(x.dtype), weight.to(w.dtype), flat.sum(0).to(w.dtype)


_LINEAR = functional.linear


def linear_backward_in_fp64() -> None:
    """The backward pass of linear layers summed in fp64."""
    functional.linear = lambda x, w, b=None: _LINEAR(x, w) if b is None else _Linear.apply(x, w, b)


def update_multiplied_otherwise() -> None:
    """AdamW's products in another order."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"])
        value.sub_(group["lr"] * (update + group["weight_decay"] * value))

    _own_update(rule)
