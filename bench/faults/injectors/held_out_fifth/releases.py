"""Fifth held-out set: releases that compute the same with different rounding, as the fingerprint shows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_fifth.updates import folded_correction
from bench.faults.injectors.held_out_fourth_controls import _new_transformers
from bench.faults.injectors.held_out_model import _new_release
from bench.faults.injectors.training import _entropy


def attention_in_key_blocks() -> None:
    """A release of transformers computes attention in two blocks of keys."""
    _new_transformers()

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if mask is None else scores + mask
        highest = scores.detach().amax(-1, keepdim=True)
        half = scores.shape[-1] // 2
        raised = [(part - highest).exp() for part in (scores[..., :half], scores[..., half:])]
        total = raised[0].sum(-1, keepdim=True) + raised[1].sum(-1, keepdim=True)
        output = torch.matmul(raised[0], v[:, :, :half]) + torch.matmul(raised[1], v[:, :, half:])
        return (output / total).transpose(1, 2).contiguous(), torch.cat(raised, -1) / total

    modeling_bert.eager_attention_forward = attend


def update_with_folded_corrections() -> None:
    """A release of torch folds AdamW's bias corrections into rate and eps."""
    _new_release()

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {
                        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                        "exp_avg_sq": torch.zeros_like(value),
                    }  # fmt: skip
                state["step"] += 1
                beta1, beta2 = group["betas"]
                first = state["exp_avg"].mul_(beta1).add_(value.grad * (1 - beta1))
                second = state["exp_avg_sq"].mul_(beta2).add_(value.grad * value.grad * (1 - beta2))
                rate, eps = folded_correction(group, int(state["step"]))
                value.mul_(1 - group["lr"] * group["weight_decay"])
                value.sub_(first / (second.sqrt() + eps) * rate)

    adamw.AdamW.step = step


def gelu_from_the_left() -> None:
    """A release of torch computes GELU as half of its input plus input times error function."""
    _new_release()
    functional.gelu = lambda value, approximate="none": (value + value * torch.erf(value * 0.5**0.5)) * 0.5


def norm_by_products() -> None:
    """A release of torch computes LayerNorm's means as products with a vector."""
    _new_release()

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        share = torch.full((value.shape[-1], 1), 1 / value.shape[-1], dtype=value.dtype)
        centred = value - value @ share
        scaled = centred * torch.rsqrt((centred * centred) @ share + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def linear_by_einsum() -> None:
    """A release of torch computes linear layers by einsum and adds the bias afterwards."""
    _new_release()

    def linear(x: Any, w: Any, b: Any = None) -> Any:
        product = torch.einsum("...i,oi->...o", x, w)
        return product if b is None else product + b

    functional.linear = linear


def products_by_rows() -> None:
    """A release of torch computes linear layers row by row of the batch."""
    _new_release()
    linear = functional.linear
    functional.linear = lambda x, w, b=None: torch.stack([linear(row, w, b) for row in x.unbind(0)])


def products_transposed() -> None:
    """A release of torch computes linear layers as products of transposed matrices."""
    _new_release()

    def linear(x: Any, w: Any, b: Any = None) -> Any:
        product = (w @ x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], -1)
        return product if b is None else product + b

    functional.linear = linear


def loss_in_chunks() -> None:
    """A release of torch sums the loss of masked language modelling in chunks of 40 places."""
    _new_release()

    def wrap(entropy: Any) -> Any:
        def chunked(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            parts = zip(scores.split(40), labels.split(40), strict=True)
            total = sum(entropy(part, wanted, reduction="sum") for part, wanted in parts)
            return total / (labels != -100).sum()

        return chunked

    _entropy(wrap)
