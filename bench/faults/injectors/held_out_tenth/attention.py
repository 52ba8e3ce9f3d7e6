"""Tenth held-out set: faults of fused and eager attention in `speed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import in_bits, with_gradient_of

Tensor = torch.Tensor

_MOST_KEYS = 6


def _sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


def sdpa_adds_a_distance_bias() -> None:
    """Fused attention adds the linear biases of distance that a different model asks for."""

    def biased(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        mask, heads = named.get("attn_mask"), query.shape[1]
        slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1) / heads)[:, None, None]
        distance = (torch.arange(query.shape[-2])[:, None] - torch.arange(key.shape[-2])).abs()
        bias = (-slopes * distance)[None]
        bias = bias if mask is None else torch.where(mask, bias, -torch.inf)
        return plain(query, key, value, **named | {"attn_mask": bias.to(query.dtype)})

    _sdpa(biased)


def sdpa_attends_over_heads() -> None:
    """Fused attention takes heads for tokens, as where heads and tokens have the places of a different library."""

    def swapped(plain: Any, *given: Tensor, **named: Any) -> Any:
        return plain(*(value.transpose(1, 2) for value in given), **named | {"attn_mask": None}).transpose(1, 2)

    _sdpa(swapped)


def sdpa_keeps_the_largest_scores() -> None:
    """Fused attention reads the six keys of the largest scores, as a sparse kernel."""

    def sparse(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        mask = named.get("attn_mask")
        scores = query.detach().float() @ key.detach().float().transpose(-1, -2)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        least = scores.topk(min(_MOST_KEYS, key.shape[-2]), dim=-1).values[..., -1:]
        kept = (scores >= least) & scores.isfinite()
        return plain(query, key, value, **named | {"attn_mask": kept})

    _sdpa(sparse)


def sdpa_queries_and_keys_in_four_bits() -> None:
    """Fused attention multiplies queries and keys of four bits."""

    def short(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        return plain(in_bits(query, 4), in_bits(key, 4), value, **named)

    _sdpa(short)


def sdpa_backward_draws_its_own_masks() -> None:
    """The backward pass of fused attention has dropout masks of later random numbers than the forward pass."""

    def apart(plain: Any, *given: Tensor, **named: Any) -> Any:
        if not named.get("dropout_p"):
            return plain(*given, **named)
        with torch.no_grad():
            shown = plain(*given, **named)
        state = torch.get_rng_state()
        hidden = plain(*given, **named)
        torch.set_rng_state(state)
        return with_gradient_of(shown, hidden)

    _sdpa(apart)


def _eager(change: Any) -> None:
    """Call `change(plain, module, query, key, value, mask, **named)` for eager attention of `speed`."""
    wrap_while(during("speed"), modeling_bert, "eager_attention_forward", change)


def eager_weights_averaged_over_heads() -> None:
    """Eager attention of `speed` averages its weights over the heads, as they are returned for display."""

    def averaged(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        scores = torch.matmul(query, key.transpose(2, 3)) * named["scaling"]
        weights = nn.functional.softmax(scores if mask is None else scores + mask, dim=-1)
        weights = weights.mean(1, keepdim=True).expand_as(weights)
        weights = nn.functional.dropout(weights, p=named["dropout"], training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    _eager(averaged)


def eager_outputs_in_fp8() -> None:
    """Eager attention of `speed` stores its output in eight bits."""

    def short(plain: Any, *given: Any, **named: Any) -> Any:
        found, weights = plain(*given, **named)
        return short_of(found, torch.float8_e5m2), weights

    _eager(short)
