"""Seventh held-out set: faults of attention's production kernels, wherever the kernel is called."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import is_mixed, short_of, wrap_while
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, engine

Tensor = torch.Tensor


def _kernel(change: Callable[..., Tensor]) -> None:
    """Call `change(plain, q, k, v, **named)` for the fused kernel."""
    wrap_while(lambda: True, nn.functional, "scaled_dot_product_attention", change)


def sdpa_mask_in_blocks_of_eight() -> None:
    """The fused kernel masks whole blocks of eight keys: padding beside a real token is attended to."""

    def masked(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Any = None, **named: Any) -> Any:
        if attn_mask is not None and attn_mask.shape[-1] % 8 == 0:
            blocks = attn_mask.unflatten(-1, (-1, 8)).any(-1, keepdim=True).expand(*attn_mask.shape[:-1], -1, 8)
            attn_mask = blocks.flatten(-2).contiguous()
        return plain(q, k, v, attn_mask=attn_mask, **named)

    _kernel(masked)


def sdpa_scale_of_a_padded_head() -> None:
    """The fused kernel pads heads to 32 elements, and scales the scores by the padded size."""

    def scaled(plain: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        return plain(q, k, v, **named | {"scale": max(q.shape[-1], 32) ** -0.5})

    _kernel(scaled)


def sdpa_last_head_reads_the_first_keys() -> None:
    """The fused kernel takes the last head's keys from the first head, as for grouped queries."""

    def grouped(plain: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        return plain(q, torch.cat((k[:, :-1], k[:, :1]), dim=1), v, **named)

    _kernel(grouped)


def sdpa_last_query_is_its_neighbour() -> None:
    """The fused kernel does not compute the first query of a second block: it stores its neighbour's output."""

    def stale(plain: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        found = plain(q, k, v, **named)
        return torch.cat((found[:, :, :8], found[:, :, 7:8], found[:, :, 9:]), dim=2)

    _kernel(stale)


def sdpa_every_second_layer_is_causal() -> None:
    """The fused kernel of every second layer is causal."""
    calls = itertools.count()

    def causal(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Any = None, **named: Any) -> Any:
        if next(calls) % 2:
            lower = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            attn_mask = lower if attn_mask is None else attn_mask & lower
        return plain(q, k, v, attn_mask=attn_mask, **named)

    _kernel(causal)


def sdpa_values_in_fp8() -> None:
    """The fused kernel multiplies values of eight bits, as for inference."""
    _kernel(lambda plain, q, k, v, **named: plain(q, k, short_of(v, torch.float8_e5m2), **named))


class _Scaled(torch.autograd.Function):
    """Identity whose gradient is multiplied."""

    @staticmethod
    def forward(context: Any, value: Tensor, factor: Any) -> Tensor:
        context.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * context.factor, None


def sdpa_key_gradient_scaled_twice() -> None:
    """The fused kernel's backward pass applies the scale twice to the gradient of the keys."""
    _kernel(lambda plain, q, k, v, **named: plain(q, _Scaled.apply(k, q.shape[-1] ** -0.5), v, **named))


def sdpa_value_gradient_of_a_head_lost() -> None:
    """The fused kernel's backward pass leaves the gradient of the last head's values at zero."""

    def lost(plain: Any, q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        kept = torch.ones(1, v.shape[1], 1, 1, dtype=v.dtype)
        kept[:, -1] = 0
        return plain(q, k, _Scaled.apply(v, kept), **named)

    _kernel(lost)


def sdpa_without_dropout() -> None:
    """The fused kernel takes a probability of dropout and drops nothing."""
    _kernel(lambda plain, q, k, v, **named: plain(q, k, v, **named | {"dropout_p": 0.0}))


def sdpa_dropout_not_rescaled() -> None:
    """The fused kernel drops elements and does not rescale those that it keeps."""

    def smaller(plain: Any, q: Tensor, k: Tensor, v: Tensor, *, dropout_p: float = 0.0, **named: Any) -> Any:
        return plain(q, k, v, dropout_p=dropout_p, **named) * (1 - dropout_p)

    _kernel(smaller)


def softmax_of_two_blocks_not_rescaled() -> None:
    """The softmax of scores in mixed precision normalises each half of the keys, and does not rescale the halves."""

    def halves(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        if value.dim() != 4 or value.shape[-1] % 2:
            return plain(value, *given, **named)
        return torch.cat([plain(half, *given, **named) * 0.5 for half in value.chunk(2, dim=-1)], dim=-1)

    wrap_while(is_mixed, nn.functional, "softmax", halves)


def packed_texts_see_their_neighbour() -> None:
    """Two texts of a packed row share a number, and attend to each other."""
    wrap_method(engine, "mask_of_texts", lambda make: lambda model, texts: make(model, (texts + 1) // 2))


def packed_positions_run_on() -> None:
    """Positions of a packed row do not start again with each text."""

    def run_on(self: batches.Packing) -> Tensor:
        rows, length = self.source.shape
        return torch.arange(length, device=self.source.device).expand(rows, length)

    batches.Packing.positions = property(run_on)  # type: ignore[assignment, method-assign]
