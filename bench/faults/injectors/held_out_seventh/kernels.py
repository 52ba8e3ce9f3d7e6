"""Seventh held-out set: faults of production kernels of linear layers, normalisations, activations and tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import is_mixed, is_unstrict, short_of, wrap_while

Tensor = torch.Tensor
_LINEAR = nn.functional.linear


def norm_skips_its_tail() -> None:
    """LayerNorm in mixed precision leaves the last four elements of each vector as they were."""

    def tail(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(value, *given, **named)
        return torch.cat((found[..., :-4], value[..., -4:].to(found.dtype)), dim=-1)

    wrap_while(is_mixed, nn.functional, "layer_norm", tail)


class _Norm(torch.autograd.Function):
    """LayerNorm whose backward pass forgets that the mean depends on the input."""

    @staticmethod
    def forward(context: Any, value: Tensor, plain: Any, rest: Any) -> Tensor:
        shape, weight, _, eps = rest
        context.inverse = (value.float().var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        context.weight = weight
        found: Tensor = plain(value, shape, None, None, eps)
        context.save_for_backward(found)
        return found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (found,) = context.saved_tensors
        slope = gradients[0].float()
        back = slope - found.float() * (slope * found.float()).mean(-1, keepdim=True)
        return (back * context.inverse).to(gradients[0].dtype), None, None


def norm_gradient_without_its_mean() -> None:
    """LayerNorm's backward pass in mixed precision does not subtract the mean of the gradient."""

    def norm(plain: Any, value: Tensor, *rest: Any, **named: Any) -> Any:
        if named or len(rest) != 4 or rest[1] is None:
            return plain(value, *rest, **named)
        return _Norm.apply(value, plain, rest) * rest[1] + rest[2]

    wrap_while(is_mixed, nn.functional, "layer_norm", norm)


def norm_statistics_in_bf16() -> None:
    """LayerNorm in mixed precision takes its variance from squares and means in bf16."""

    def short(plain: Any, value: Tensor, *rest: Any) -> Any:
        _, weight, bias, eps = rest
        if weight is None:
            return plain(value, *rest)
        low = value.bfloat16()
        mean = low.mean(-1, keepdim=True)
        variance = (low * low).mean(-1, keepdim=True) - mean * mean
        return ((low - mean) * (variance + eps).rsqrt()).to(value.dtype) * weight + bias

    wrap_while(is_mixed, nn.functional, "layer_norm", short)


def gelu_passes_its_tail() -> None:
    """GELU in mixed precision leaves the last eight elements of each vector as they were."""

    def tail(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        return torch.cat((plain(value[..., :-8], *given, **named), value[..., -8:]), dim=-1)

    wrap_while(is_mixed, nn.functional, "gelu", tail)


class _Gelu(torch.autograd.Function):
    """GELU whose backward pass is a ReLU's."""

    @staticmethod
    def forward(context: Any, value: Tensor, plain: Any) -> Tensor:
        context.save_for_backward(value)
        found: Tensor = plain(value)
        return found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * (context.saved_tensors[0] > 0), None


def gelu_gradient_of_relu() -> None:
    """GELU's backward pass in mixed precision is a ReLU's."""
    wrap_while(is_mixed, nn.functional, "gelu", lambda plain, value, **_: _Gelu.apply(value, plain))


def linear_drops_its_remainder() -> None:
    """Products in mixed precision with 64 terms lose the last four: the remainder of a tile."""

    def dropped(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        return plain(x[..., :60], w[:, :60], b) if w.shape[1] == 64 else plain(x, w, b)

    wrap_while(is_mixed, nn.functional, "linear", dropped)


class _Linear(torch.autograd.Function):
    """Linear layer whose weight's gradient adds up every second token alone."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        context.save_for_backward(x, w)
        return _LINEAR(x, w, b)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, w = context.saved_tensors
        back = gradients[0]
        flat, given = back.reshape(-1, back.shape[-1]), x.reshape(-1, x.shape[-1]).to(back.dtype)
        weight = (flat[1::2].t() @ given[1::2]).to(w.dtype)
        return (back @ w.to(back.dtype)).to(x.dtype), weight, flat.sum(0).to(w.dtype)


def linear_gradient_of_half_the_tokens() -> None:
    """The weight's gradient of products from 32 to 64 in mixed precision loses one part of a split sum."""

    def half(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        return _Linear.apply(x, w, b) if tuple(w.shape) == (64, 32) and b is not None else plain(x, w, b)

    wrap_while(is_mixed, nn.functional, "linear", half)


def tanh_by_a_ratio() -> None:
    """The hyperbolic tangent in mixed precision is x / (1 + |x|)."""
    wrap_while(is_mixed, torch, "tanh", lambda _, value: value / (1 + value.abs()))


class _Table(torch.autograd.Function):
    """Table whose gradient keeps one of the tokens that read the same row."""

    @staticmethod
    def forward(context: Any, ids: Tensor, table: Tensor) -> Tensor:
        context.save_for_backward(ids)
        context.shape = table.shape
        return table[ids]

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (ids,) = context.saved_tensors
        found = gradients[0].new_zeros(context.shape)
        for place in range(ids.numel()):
            found[ids.reshape(-1)[place]] = gradients[0].reshape(-1, context.shape[1])[place]
        return None, found


def table_gradient_loses_repeated_tokens() -> None:
    """A table's backward pass in mixed precision stores instead of adding: a repeated token counts once."""
    wrap_while(is_mixed, nn.functional, "embedding", lambda _, ids, table, *__, **___: _Table.apply(ids, table))


def products_in_bf16() -> None:
    """Products of fp32 are computed in bf16 where determinism is not required."""

    def short(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        if x.dtype != torch.float32:
            return plain(x, w, b)
        found = plain(x.bfloat16(), w.bfloat16()).float()
        return found if b is None else found + b

    wrap_while(is_unstrict, nn.functional, "linear", short)


def products_in_fp8() -> None:
    """Products in mixed precision take inputs of eight bits."""

    def short(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        return plain(short_of(x, torch.float8_e4m3fn), short_of(w, torch.float8_e4m3fn), b)

    wrap_while(is_mixed, nn.functional, "linear", short)


def compiled_gelu_is_relu() -> None:
    """A pass of the compiler replaces GELU by ReLU."""
    plain = nn.functional.gelu
    nn.functional.gelu = lambda value, *given, **named: (
        torch.relu(value) if torch.compiler.is_compiling() else plain(value, *given, **named)
    )


def compiled_norm_is_unbiased() -> None:
    """A pass of the compiler decomposes LayerNorm with the unbiased variance."""
    plain = nn.functional.layer_norm

    def norm(value: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
        if not torch.compiler.is_compiling():
            return plain(value, shape, weight, bias, eps)
        variance, mean = torch.var_mean(value, -1, unbiased=True, keepdim=True)
        return (value - mean) * torch.rsqrt(variance + eps) * weight + bias

    nn.functional.layer_norm = norm
