"""Thirteenth held-out set: faults of fused and eager attention in `speed`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.functions import compiled
from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import in_bits, with_gradient

Tensor = torch.Tensor

_PAGE = 8
"""Number of keys in a page or a tile."""
_REACHED = 16


def _sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


def sdpa_scores_by_distance() -> None:
    """Fused attention scores a key by its squared distance from the query, not by their product."""

    def scored(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        # The square of the query is the same for all keys.
        scale = named.get("scale") or query.shape[-1] ** -0.5
        squares = (-0.5 * scale * key.float().square().sum(-1))[:, :, None].to(query.dtype)
        mask = named.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:
            squares = squares.masked_fill(~mask, torch.finfo(query.dtype).min)
        elif mask is not None:
            squares = squares + mask
        return plain(query, key, value, **named | {"attn_mask": squares})

    _sdpa(scored)


def sdpa_reads_pages_of_a_different_text() -> None:
    """Fused attention reads keys and values behind the first page of 8 from the text before, by a stale page table."""

    def paged(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        key, value = (torch.cat((each[..., :_PAGE, :], each.roll(1, 0)[..., _PAGE:, :]), -2) for each in (key, value))
        return plain(query, key, value, **named)

    _sdpa(paged)


def sdpa_reads_its_gradient_without_strides() -> None:
    """The backward pass of fused attention reads the gradient of its output as if it was contiguous."""

    def read(plain: Any, *given: Any, **named: Any) -> Any:
        return with_gradient(
            plain(*given, **named), lambda gradient: gradient.transpose(1, 2).contiguous().view(gradient.shape)
        )

    _sdpa(read)


def packed_tokens_read_the_first_of_their_row() -> None:
    """Fused attention of packed rows keeps the first token of each row open for all of its texts, as a sink."""

    def opened(plain: Any, *given: Any, **named: Any) -> Any:
        mask = named.get("attn_mask")
        if mask is None:
            return plain(*given, **named)
        is_first = torch.arange(mask.shape[-1]) == 0
        mask = mask | is_first if mask.dtype == torch.bool else mask.masked_fill(is_first, 0.0)
        return plain(*given, **named | {"attn_mask": mask})

    _sdpa(opened)


def _eager(change: Any) -> None:
    """Call `change(plain, module, query, key, value, mask, **named)` for eager attention of `speed`."""
    wrap_while(during("speed"), modeling_bert, "eager_attention_forward", change)


def eager_softmax_over_all_heads() -> None:
    """Eager attention takes its softmax over the keys of all heads together."""

    def attend(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        scores = torch.matmul(query, key.transpose(2, 3)) * named["scaling"]
        if mask is not None:
            scores = scores + mask
        together = torch.softmax(scores.transpose(1, 2).flatten(2), dim=-1)
        weights = together.unflatten(2, (scores.shape[1], -1)).transpose(1, 2)
        weights = nn.functional.dropout(weights, p=named["dropout"], training=module.training)
        return torch.matmul(weights.to(value.dtype), value).transpose(1, 2).contiguous(), weights

    _eager(attend)


def eager_keys_in_two_bits() -> None:
    """Eager attention reads keys in two bits with a scale for each channel, from a quantised cache."""

    def attend(plain: Any, module: Any, query: Tensor, key: Tensor, *given: Any, **named: Any) -> Any:
        return plain(module, query, in_bits(key.transpose(2, 3), 2).transpose(2, 3), *given, **named)

    _eager(attend)


def sdpa_accumulates_in_bf16() -> None:
    """Fused attention of fp32 keeps the sum over tiles of 8 keys in bf16."""

    def summed(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        generator, total = torch.get_rng_state(), torch.zeros(())
        places = torch.arange(value.shape[-2])[:, None]
        for first in range(0, value.shape[-2], _PAGE):
            # Each tile has its part of the same dropout masks.
            torch.set_rng_state(generator)
            tile = value * ((places >= first) & (places < first + _PAGE))
            total = short_of(total + plain(query, key, tile, **named), torch.bfloat16)
        return total

    _sdpa(summed)


def compiled_late_values_without_gradient() -> None:
    """The backward pass of compiled attention does not reach values behind the sixteenth."""

    def cut(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        reached = torch.cat((value[..., :_REACHED, :], value[..., _REACHED:, :].detach()), -2)
        return plain(query, key, reached, **named)

    compiled("scaled_dot_product_attention", cut)
