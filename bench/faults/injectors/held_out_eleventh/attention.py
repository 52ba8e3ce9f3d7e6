"""Eleventh held-out set: faults of fused and eager attention in `speed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, short_of, wrap_while

Tensor = torch.Tensor

_LAST_LAYER = 1
_PERIOD = 10_000.0


def _sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


def _rotated(value: Tensor) -> Tensor:
    """Return a value whose pairs of elements are turned by the angle of their token."""
    half = value.shape[-1] // 2
    angle = torch.arange(value.shape[-2])[:, None] * _PERIOD ** (-torch.arange(half) / half)
    first, second = value.float().chunk(2, dim=-1)
    turned = (first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin())
    return torch.cat(turned, dim=-1).to(value.dtype)


def sdpa_rotates_queries_and_keys() -> None:
    """Fused attention turns queries and keys by their places, as models without a table of places."""
    _sdpa(lambda plain, query, key, value, **named: plain(_rotated(query), _rotated(key), value, **named))


def sdpa_scores_in_fp8() -> None:
    """Fused attention of fp32 keeps its scores in eight bits."""

    def short(_: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        mask, scale = named.get("attn_mask"), named.get("scale") or query.shape[-1] ** -0.5
        scores = short_of(query @ key.transpose(-1, -2) * scale, torch.float8_e5m2)
        weights = (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)
        return nn.functional.dropout(weights, named.get("dropout_p") or 0.0) @ value

    _sdpa(short)


class _Exchanged(torch.autograd.Function):
    """Identity of two values, which gives each the gradient of the other."""

    @staticmethod
    def forward(_context: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first.view_as(first), second.view_as(second)

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[1], gradients[0]


def sdpa_gradients_of_queries_and_keys_exchanged() -> None:
    """The backward pass of fused attention returns the gradients of queries and keys in each other's place."""

    def exchanged(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        return plain(*_Exchanged.apply(query, key), value, **named)  # type: ignore[no-untyped-call]

    _sdpa(exchanged)


def packed_last_layer_reads_whole_rows() -> None:
    """Fused attention of the last layer of `speed` loses the mask that keeps texts of a packed row apart."""
    is_last = [False]

    def layer(plain: Any, self: Any, *given: Any, **named: Any) -> Any:
        is_last[0] = self.layer_idx == _LAST_LAYER
        try:
            return plain(self, *given, **named)
        finally:
            is_last[0] = False

    wrap_while(during("speed"), modeling_bert.BertSelfAttention, "forward", layer)
    wrap_while(
        lambda: is_last[0], nn.functional, "scaled_dot_product_attention",
        lambda plain, *given, **named: plain(*given, **named | {"attn_mask": None}),
    )  # fmt: skip


def eager_scores_through_a_sigmoid() -> None:
    """Eager attention of `speed` weighs each token by the sigmoid of its score, without a softmax."""

    def weighed(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        scores = torch.matmul(query, key.transpose(2, 3)) * named["scaling"]
        weights = torch.sigmoid(scores if mask is None else scores + mask)
        weights = nn.functional.dropout(weights, p=named["dropout"], training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    wrap_while(during("speed"), modeling_bert, "eager_attention_forward", weighed)
