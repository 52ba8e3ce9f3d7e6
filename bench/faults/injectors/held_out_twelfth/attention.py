"""Twelfth held-out set: faults of fused and eager attention in `speed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, wrap_while
from bench.faults.injectors.held_out_tenth.values import with_gradient

Tensor = torch.Tensor

_TILE = 8
_TRAINED_LENGTH = 512


def _sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


def sdpa_accumulates_onto_its_values() -> None:
    """Fused attention adds its sums to a buffer that holds the values of the same tokens."""

    def added(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        found = plain(query, key, value, **named)
        return found + value if found.shape == value.shape else found

    _sdpa(added)


def sdpa_leaves_its_first_queries_at_zero() -> None:
    """Fused attention of more than 8 queries begins with the second tile of 8: the outputs of the first stay zero."""

    def late(plain: Any, query: Tensor, *given: Any, **named: Any) -> Any:
        found, length = plain(query, *given, **named), query.shape[-2]
        is_stored = torch.arange(length) >= (_TILE if length > _TILE else 0)
        return found * is_stored[:, None].to(found.dtype)

    _sdpa(late)


def sdpa_value_gradients_summed_over_heads() -> None:
    """The backward pass of fused attention sums the gradients of values over heads, as if they shared their values."""

    def summed(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        shared = with_gradient(value, lambda gradient: gradient.sum(1, keepdim=True).expand_as(gradient))
        return plain(query, key, shared, **named)

    _sdpa(summed)


def eager_weights_masked_after_the_softmax() -> None:
    """Eager attention of `speed` takes its softmax over padding too, and clears the weights of padding afterwards."""

    def attend(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        weights = torch.softmax(torch.matmul(query, key.transpose(2, 3)) * named["scaling"], dim=-1)
        if mask is not None:
            weights = weights * (mask >= 0)
        weights = nn.functional.dropout(weights, p=named["dropout"], training=module.training)
        return torch.matmul(weights.to(value.dtype), value).transpose(1, 2).contiguous(), weights

    wrap_while(during("speed"), modeling_bert, "eager_attention_forward", attend)


def packed_tokens_do_not_read_themselves() -> None:
    """Fused attention of packed rows leaves out the diagonal of its mask, but for a token that is alone."""

    def others(plain: Any, *given: Any, **named: Any) -> Any:
        mask = named.get("attn_mask")
        if mask is None:
            return plain(*given, **named)
        is_open = mask if mask.dtype == torch.bool else mask >= 0
        is_left_out = torch.eye(mask.shape[-1], dtype=torch.bool) & (is_open.sum(-1, keepdim=True) > 1)
        closed = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return plain(*given, **named | {"attn_mask": mask.masked_fill(is_left_out, closed)})

    _sdpa(others)
