"""Ninth held-out set: faults of fused and eager attention in `speed`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, wrap_while

Tensor = torch.Tensor

_TILE = 16
_MOST_KEYS = 4


def _sdpa(change: Any) -> None:
    """Call `change(plain, query, key, value, **named)` for fused attention of `speed`."""
    wrap_while(is_unstrict, nn.functional, "scaled_dot_product_attention", change)


def sdpa_tile_padding_in_the_softmax() -> None:
    """Fused attention adds up a tile of padded keys in its softmax."""

    def padded(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        mask, scale = named.get("attn_mask"), named.get("scale") or query.shape[-1] ** -0.5
        scores = query.float() @ key.float().transpose(-1, -2) * scale
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        share = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - math.log(_TILE))
        found = plain(query, key, value, **named)
        return found * share.to(found.dtype)

    _sdpa(padded)


def sdpa_mask_of_the_first_row() -> None:
    """Fused attention broadcasts the mask of the first row to all rows."""

    def broadcast(plain: Any, query: Tensor, *given: Any, **named: Any) -> Any:
        mask = named.get("attn_mask")
        first = mask if mask is None else mask[:1].expand_as(mask)
        return plain(query, *given, **named | {"attn_mask": first})

    _sdpa(broadcast)


def sdpa_output_interleaves_its_heads() -> None:
    """Fused attention returns its heads interleaved, element by element."""

    def interleaved(plain: Any, *given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        rows, heads, length, size = found.shape
        return found.permute(0, 2, 3, 1).reshape(rows, length, heads, size).transpose(1, 2)

    _sdpa(interleaved)


def sdpa_backward_without_its_row_sum() -> None:
    """The backward pass of fused attention leaves out the row sum of the softmax's gradient."""

    def summed(plain: Any, query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
        found = plain(query, key, value, **named)
        if not query.requires_grad:
            return found
        mask, scale = named.get("attn_mask"), named.get("scale") or query.shape[-1] ** -0.5
        kept: list[Tensor] = []

        def output(gradient: Tensor) -> None:
            queries, keys = query.detach().float(), key.detach().float()
            scores = queries @ keys.transpose(-1, -2) * scale
            scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
            weights = scores.softmax(-1) * (gradient.float() * found.detach().float()).sum(-1, keepdim=True)
            kept[:] = [weights @ keys * scale, weights.transpose(-1, -2) @ queries * scale]

        found.register_hook(output)
        query.register_hook(lambda gradient: gradient + kept[0].to(gradient.dtype))
        key.register_hook(lambda gradient: gradient + kept[1].to(gradient.dtype))
        return found

    _sdpa(summed)


def sdpa_reads_uninitialised_memory() -> None:
    """Fused attention adds memory that was never written to its output."""
    random = torch.Generator()

    def unwritten(plain: Any, *given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        random.seed()
        return found + (0.05 * torch.randn(found.shape, generator=random)).to(found.dtype)

    _sdpa(unwritten)


def eager_scores_multiplied_by_the_mask() -> None:
    """Eager attention of `speed` multiplies its scores by the mask, and so reads padding."""

    def multiplied(_: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **named: Any) -> Any:
        scores = torch.matmul(query, key.transpose(2, 3)) * named["scaling"]
        scores = scores if mask is None else scores * (mask == 0)
        weights = functional.dropout(functional.softmax(scores, -1), p=named["dropout"], training=module.training)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    wrap_while(during("speed"), modeling_bert, "eager_attention_forward", multiplied)


def packed_late_keys_not_read() -> None:
    """Attention of packed rows reads the first four tokens of each text alone."""

    def early(plain: Any, query: Tensor, *given: Any, **named: Any) -> Any:
        mask = named.get("attn_mask")
        if mask is None:
            return plain(query, *given, **named)
        place = (mask & torch.ones_like(mask).tril(-1)).sum(-1)
        return plain(query, *given, **named | {"attn_mask": mask & (place < _MOST_KEYS)[..., None, :]})

    _sdpa(early)
