"""Fourth held-out set: faults of operators, and of kernels that no fingerprint explains."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_model import _attention
from bench.faults.injectors.held_out_third import _hook
from bench.faults.injectors.patching import after_build, wrap_method

# Attention.


def _inputs(change: Any) -> None:
    """Change queries, keys, values and mask before the attention is computed."""
    wrap_method(
        modeling_bert,
        "eager_attention_forward",
        lambda forward: lambda module, q, k, v, mask, **rest: forward(module, *change(q, k, v, mask), **rest),
    )


def sliding_window() -> None:
    """Attention reaches four positions to either side (huggingface/transformers#40700)."""

    def change(mask: Any, q: Any) -> Any:
        places = torch.arange(q.shape[2])
        far = (places[:, None] - places[None, :]).abs() > 4
        local = torch.zeros(far.shape, dtype=q.dtype).masked_fill(far, torch.finfo(q.dtype).min)
        return local if mask is None else torch.minimum(mask, local)

    _attention(change)


def packed_rows_attend_to_each_other() -> None:
    """Each row also attends to the row before it in the batch (huggingface/trl#3526)."""

    def change(q: Any, k: Any, v: Any, mask: Any) -> Any:
        wide = None if mask is None else torch.cat([mask, mask.roll(1, 0)], -1)
        return q, torch.cat([k, k.roll(1, 0)], 2), torch.cat([v, v.roll(1, 0)], 2), wide

    _inputs(change)


def first_head_shares_its_keys() -> None:
    """All heads use the keys of the first head."""
    _inputs(lambda q, k, v, mask: (q, k[:, :1].expand_as(k), v, mask))


def mask_inverted() -> None:
    """Attention reads the mask with the opposite meaning."""
    _attention(
        lambda mask, q: (
            None if mask is None else torch.zeros_like(mask).masked_fill(mask == 0, torch.finfo(q.dtype).min)
        )
    )


def heads_not_transposed() -> None:
    """The heads are joined without transposing tokens and heads."""

    def wrap(forward: Any) -> Any:
        def joined(*args: Any, **rest: Any) -> Any:
            output, weights = forward(*args, **rest)
            return output.transpose(1, 2).reshape(output.shape), weights

        return joined

    wrap_method(modeling_bert, "eager_attention_forward", wrap)


def keys_of_the_layer_below() -> None:
    """The second layer reads the first layer's keys from a cache."""

    def change(model: Any) -> None:
        first, second = (layer.attention.self.key for layer in model.bert.encoder.layer)
        cache: list[Any] = [None]
        first.register_forward_hook(lambda _module, _inputs, output: cache.__setitem__(0, output))
        second.forward = lambda _states: cache[0]

    after_build(change)


def _softmax(change: Any) -> None:
    """Replace the softmax of attention scores."""
    softmax = functional.softmax
    functional.softmax = lambda value, dim=None, **rest: (
        change(value) if value.dim() == 4 else softmax(value, dim=dim, **rest)
    )


def softmax_to_base_two() -> None:
    """Attention's softmax raises 2 instead of e."""
    softmax = functional.softmax
    _softmax(lambda value: softmax(value * math.log(2), dim=-1))


def second_block_not_rescaled() -> None:
    """A blockwise softmax does not rescale its second block to the common maximum."""

    def blockwise(value: Any) -> Any:
        raised = []
        for block in value.split(value.shape[-1] // 2, -1):
            highest = block.amax(-1, keepdim=True)
            raised.append((block - highest).exp().masked_fill(highest < -1e30, 0.0))
        joined = torch.cat(raised, -1)
        return joined / joined.sum(-1, keepdim=True)

    _softmax(blockwise)


# Norms, layers and positions.


def layer_norm_without_centring() -> None:
    """LayerNorm divides by the root mean square and does not centre."""

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        scaled = value * torch.rsqrt((value * value).mean(-1, keepdim=True) + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def norm_before_the_residual() -> None:
    """The first layer normalises its output before it adds the residual."""

    def change(model: Any) -> None:
        output = model.bert.encoder.layer[0].output
        output.forward = lambda states, residual: output.LayerNorm(output.dropout(output.dense(states))) + residual

    after_build(change)


def norm_over_tokens_too() -> None:
    """A LayerNorm normalises over tokens and features together."""

    def change(model: Any) -> None:
        norm = model.bert.encoder.layer[1].attention.output.LayerNorm
        norm.forward = lambda value: (
            functional.layer_norm(value, value.shape[-2:], None, None, norm.eps) * norm.weight + norm.bias
        )

    after_build(change)


def last_layer_skipped() -> None:
    """The pooler reads the output of the last but one layer."""
    after_build(
        lambda model: model.bert.encoder.layer[1].register_forward_hook(lambda _module, inputs, _output: inputs[0])
    )


def positions_wrap() -> None:
    """Positions start again at 0 after 16 tokens."""

    def change(model: Any) -> None:
        model.bert.embeddings.position_ids %= 16

    after_build(change)


def tile_remainder_not_written() -> None:
    """A kernel leaves the last four outputs of a linear layer at zero."""

    def cut(output: Any) -> Any:
        return torch.cat([output[..., :-4], torch.zeros_like(output[..., -4:])], -1)

    _hook("bert.encoder.layer.0.intermediate.dense", cut)


# Kernels.


def columns_summed_in_reverse() -> None:
    """Products of linear layers are summed from the last column to the first."""
    linear = functional.linear
    functional.linear = lambda x, w, b=None: linear(x.flip(-1), w.flip(-1), b)


def rows_multiplied_one_by_one() -> None:
    """Products of linear layers are computed as sums of single products."""

    def summed(x: Any, w: Any, b: Any = None) -> Any:
        product = (x.unsqueeze(-2) * w).sum(-1)
        return product if b is None else product + b

    functional.linear = summed
