"""Eighth held-out set: faults of fused, eager and packed attention at production settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import is_mixed, is_unstrict, short_of, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, engine

Tensor = torch.Tensor


def _sdpa(change: Callable[..., Tensor], acts: Callable[[], bool] = lambda: True) -> None:
    """Call `change(plain, q, k, v, **named)` instead of the fused kernel."""
    wrap_while(acts, nn.functional, "scaled_dot_product_attention", change)


def sdpa_causal_without_a_mask() -> None:
    """The fused kernel is causal where a batch without padding has no mask."""
    _sdpa(
        lambda plain, q, k, v, **named: plain(q, k, v, **named | {"is_causal": named.get("attn_mask") is None}),
    )


def sdpa_values_read_without_strides() -> None:
    """The fused kernel reads transposed values as if they were contiguous."""
    _sdpa(lambda plain, q, k, v, **named: plain(q, k, v.transpose(1, 2).contiguous().view(v.shape), **named))


def sdpa_window_of_four() -> None:
    """The fused kernel has the local window of a different model: four tokens to each side."""

    def local(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Any = None, **named: Any) -> Any:
        place = torch.arange(q.shape[-2])
        distance = (place[:, None] - place[None, :]).abs()
        mask = distance <= 4 if attn_mask is None else attn_mask & (distance <= 4) | (distance == 0)
        return plain(q, k, v, attn_mask=mask, **named)

    _sdpa(local)


def sdpa_query_gradient_of_a_tile_lost() -> None:
    """The fused kernel's backward pass writes the gradient of the first 16 queries alone."""
    _sdpa(lambda plain, q, k, v, **named: plain(torch.cat((q[:, :, :16], q[:, :, 16:].detach()), dim=2), k, v, **named))


def sdpa_masks_repeat() -> None:
    """The fused kernel starts its random numbers anew at each call, as in a captured graph."""

    def repeated(plain: Any, *given: Any, **named: Any) -> Any:
        if not named.get("dropout_p"):
            return plain(*given, **named)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return plain(*given, **named)

    _sdpa(repeated)


def sdpa_inputs_in_half() -> None:
    """The fused kernel knows no fp32: it takes its inputs in fp16."""

    def half(plain: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        return plain(q.half(), k.half(), v.half(), **named).to(q.dtype)

    _sdpa(half, is_unstrict)


def sdpa_values_of_the_row_before() -> None:
    """The fused kernel reads the values of the last row of a batch from the row before it."""
    _sdpa(lambda plain, q, k, v, **named: plain(q, k, torch.cat((v[:-1], v[-2:-1])), **named))


def packed_boundaries_one_token_late() -> None:
    """Boundaries of packed texts are one token late: the first token of a text belongs to the text before it."""

    def late(make: Any) -> Any:
        return lambda model, texts: make(model, torch.cat((texts[:, :1], texts[:, :-1]), dim=1))

    wrap_method(engine, "mask_of_texts", late)


def packed_positions_start_at_one() -> None:
    """Positions of a packed text start at one."""

    def later(self: batches.Packing) -> Tensor:
        length = self.source.shape[1]
        return (self.source % length + 1).clamp(max=length - 1)

    batches.Packing.positions = property(later)  # type: ignore[assignment, method-assign]


def _eager(change: Callable[..., Any]) -> None:
    """Call `change(plain, module, query, key, value, mask, **named)` instead of eager attention in mixed precision."""
    wrap_while(is_mixed, modeling_bert, "eager_attention_forward", change)


def eager_scores_divided_by_the_layer() -> None:
    """Eager attention in mixed precision divides the scores by the number of the layer, as an option of GPT-2."""

    def divided(plain: Any, module: Any, *given: Any, scaling: float, **named: Any) -> Any:
        return plain(module, *given, scaling=scaling / (module.layer_idx + 1), **named)

    _eager(divided)


def eager_attention_out_of_autocast() -> None:
    """Eager attention computes in fp32 under autocast, as the option of a different model to upcast it."""

    def upcast(plain: Any, module: Any, *given: Any, **named: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return plain(module, *(value.float() if torch.is_tensor(value) else value for value in given), **named)

    _eager(upcast)


def eager_probabilities_in_fp8() -> None:
    """Attention's probabilities in mixed precision have eight bits."""

    def short(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(value, *given, **named)
        return short_of(found, torch.float8_e5m2) if value.dim() == 4 else found

    wrap_while(is_mixed, nn.functional, "softmax", short)


def eager_masks_shared_by_heads() -> None:
    """All heads of eager attention drop the same elements."""

    def shared(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        if value.dim() != 4:
            return plain(value, *given, **named)
        return value * plain(torch.ones_like(value[:, :1]), *given, **named)

    wrap_while(is_unstrict, nn.functional, "dropout", shared)
