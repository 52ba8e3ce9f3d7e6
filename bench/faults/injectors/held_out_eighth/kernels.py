"""Eighth held-out set: faults of linear layers, normalisations, activations, tables and losses of mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_seventh.places import is_mixed, is_unstrict, wrap_while

Tensor = torch.Tensor


def _norm(change: Callable[..., Tensor]) -> None:
    """Call `change(plain, value, shape, weight, bias, eps)` for a LayerNorm with weights in mixed precision."""

    def norm(plain: Any, *given: Any, **named: Any) -> Any:
        is_whole = not named and len(given) == 5 and given[2] is not None
        return change(plain, *given) if is_whole else plain(*given, **named)

    wrap_while(is_mixed, nn.functional, "layer_norm", norm)


def norm_replaced_by_rms_norm() -> None:
    """A patch for speed replaces LayerNorm in mixed precision by a norm that does not subtract the mean."""

    def norm(_plain: Any, value: Tensor, *rest: Any) -> Tensor:
        _, weight, bias, eps = rest
        found: Tensor = value * (value.float().square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias
        return found

    _norm(norm)


def norm_of_unmerged_halves() -> None:
    """LayerNorm in mixed precision averages the variances of two halves, without the distance of their means."""

    def norm(_plain: Any, value: Tensor, *rest: Any) -> Tensor:
        _, weight, bias, eps = rest
        wide = value.float()
        variance = wide.unflatten(-1, (2, -1)).var(-1, unbiased=False).mean(-1, keepdim=True)
        found: Tensor = (wide - wide.mean(-1, keepdim=True)) * (variance + eps).rsqrt() * weight + bias
        return found

    _norm(norm)


def norm_gradient_loses_the_last_text() -> None:
    """LayerNorm's backward pass in mixed precision leaves the last text of a batch out of its weight's gradient."""

    def norm(plain: Any, value: Tensor, *rest: Any) -> Tensor:
        shape, weight, bias, eps = rest
        last = plain(value[-1:], shape, weight.detach(), bias.detach(), eps)
        return torch.cat((plain(value[:-1], *rest), last)) if value.dim() == 3 else plain(value, *rest)

    _norm(norm)


class _Gelu(torch.autograd.Function):
    """GELU whose backward pass misses the term of the density."""

    @staticmethod
    def forward(context: Any, value: Tensor, plain: Any) -> Tensor:
        context.save_for_backward(value)
        found: Tensor = plain(value)
        return found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        share = 0.5 * (1.0 + torch.erf(context.saved_tensors[0].float() * 0.5**0.5))
        return gradients[0] * share.to(gradients[0].dtype), None


def gelu_gradient_without_its_density() -> None:
    """GELU's backward pass in mixed precision misses the term of the density."""
    wrap_while(is_mixed, nn.functional, "gelu", lambda plain, value, **_: _Gelu.apply(value, plain))


def fast_gelu_where_strictness_is_off() -> None:
    """GELU is x sigmoid(1.702 x) where determinism is not required, as a fast mode."""
    wrap_while(is_unstrict, nn.functional, "gelu", lambda _, value, **__: value * torch.sigmoid(1.702 * value))


class _Tanh(torch.autograd.Function):
    """Hyperbolic tangent whose backward pass takes the input for the output."""

    @staticmethod
    def forward(context: Any, value: Tensor, plain: Any) -> Tensor:
        context.save_for_backward(value)
        found: Tensor = plain(value)
        return found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * (1 - context.saved_tensors[0].square()), None


def tanh_gradient_of_its_input() -> None:
    """The hyperbolic tangent's backward pass reads the input instead of the output where determinism is off."""
    wrap_while(is_unstrict, torch, "tanh", lambda plain, value: _Tanh.apply(value, plain))


def linear_columns_exchanged() -> None:
    """Products to 64 outputs in mixed precision store the last two columns in each other's place."""

    def exchanged(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        found = plain(x, w, b)
        return torch.cat((found[..., :-2], found[..., -2:].flip(-1)), dim=-1) if w.shape[0] == 64 else found

    wrap_while(is_mixed, nn.functional, "linear", exchanged)


def square_weights_not_transposed() -> None:
    """Products of square weights in mixed precision lose the flag that transposes."""

    def swapped(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        return plain(x, w.t() if w.shape[0] == w.shape[1] else w, b)

    wrap_while(is_mixed, nn.functional, "linear", swapped)


def linear_input_gradient_loses_its_tail() -> None:
    """The input's gradient of products to 64 outputs in mixed precision adds up the first 48 alone."""

    def tail(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        found = plain(x, w, b)
        if w.shape[0] != 64 or not torch.is_grad_enabled():
            return found
        return torch.cat((found[..., :48], plain(x.detach(), w, b)[..., 48:]), dim=-1)

    wrap_while(is_mixed, nn.functional, "linear", tail)


def table_rows_limited_in_norm() -> None:
    """Rows of the token table in mixed precision are limited to a norm of 0.1."""

    def limited(plain: Any, ids: Tensor, table: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, table, *given, **named)
        return found * (0.1 / found.norm(dim=-1, keepdim=True)).clamp(max=1.0) if table.shape[0] > 64 else found

    wrap_while(is_mixed, nn.functional, "embedding", limited)


def table_gradient_of_late_positions_lost() -> None:
    """The backward pass of the table of positions in mixed precision writes the first 16 rows alone."""

    def early(plain: Any, ids: Tensor, table: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, table, *given, **named)
        return torch.where((ids < 16)[..., None], found, found.detach()) if table.shape[0] == 64 else found

    wrap_while(is_mixed, nn.functional, "embedding", early)


def loss_mean_of_chunk_means() -> None:
    """The loss in mixed precision is taken in two chunks of tokens, and their means are averaged."""

    def chunked(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        pairs = list(zip(logits.chunk(2), labels.chunk(2), strict=True))
        found = [plain(some, few, *given, **named) for some, few in pairs if bool((few != -100).any())]
        return torch.stack(found).mean() if found else plain(logits, labels, *given, **named)

    wrap_while(is_mixed, nn.functional, "cross_entropy", chunked)


def compiled_attention_scaled_twice() -> None:
    """A pass of the compiler that fuses attention applies the scale twice."""
    plain = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = lambda q, k, v, **named: plain(
        q, k, v, **named | ({"scale": 1.0 / q.shape[-1]} if torch.compiler.is_compiling() else {})
    )


def compiled_loss_is_smoothed() -> None:
    """A pass of the compiler that fuses the loss smooths its labels by 0.1."""
    plain = nn.functional.cross_entropy
    nn.functional.cross_entropy = lambda *given, **named: plain(
        *given, **named | ({"label_smoothing": 0.1} if torch.compiler.is_compiling() else {})
    )
