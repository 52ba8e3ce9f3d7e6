"""Ninth held-out set: faults of normalisations, products, tables, losses, compiled code and number formats."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import is_unstrict, straight_through, wrap_while

Tensor = torch.Tensor

_BLOCK = 64
_LARGE_TABLE = 256


def _unstrict(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function of `speed`."""
    wrap_while(is_unstrict, nn.functional, name, change)


def _compiled(owner: Any, name: str, change: Any) -> None:
    """Call `change(plain, ...)` in compiled code."""
    wrap_while(torch.compiler.is_compiling, owner, name, change)


def _hooked(value: Any, change: Any) -> Any:
    """Return a view of a value whose gradient is changed."""
    if value is None or not value.requires_grad:
        return value
    view = value.view_as(value)
    view.register_hook(change)
    return view


def norm_rows_past_a_block() -> None:
    """LayerNorm has statistics of an earlier row for rows past a block of 64."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        rows = value.reshape(-1, value.shape[-1])
        if len(rows) <= _BLOCK:
            return plain(value, *given)
        own = torch.arange(len(rows))
        read = torch.where(own < _BLOCK, own, own - _BLOCK)
        mean, deviation = rows.mean(-1)[read, None], (rows.var(-1, correction=0) + eps).sqrt()[read, None]
        return ((rows - mean) / deviation * weight + bias).view_as(value)

    _unstrict("layer_norm", norm)


class _Exchanged(torch.autograd.Function):
    """Autograd function: two values unchanged, with each other's gradient."""

    @staticmethod
    def forward(_context: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return first.clone(), second.clone()

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        return gradients[1], gradients[0]


def norm_gradients_exchanged() -> None:
    """LayerNorm's weight has the gradient of its bias, and the reverse."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        shape, weight, bias, eps = given
        return plain(value, shape, *_Exchanged.apply(weight, bias), eps)  # type: ignore[no-untyped-call]

    _unstrict("layer_norm", norm)


def norm_gradient_of_a_stale_deviation() -> None:
    """LayerNorm's backward pass has the deviation of the token before."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        deviation = value.detach().std(-1, keepdim=True)
        factor = deviation / deviation.roll(1, 1) if value.dim() > 1 else torch.ones(())
        return plain(_hooked(value, lambda gradient: gradient * factor), *given)

    _unstrict("layer_norm", norm)


def bias_gradient_is_a_mean() -> None:
    """A linear layer's bias has the mean of its gradients, not their sum."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        rows = value.numel() // value.shape[-1]
        return plain(value, weight, _hooked(bias, lambda gradient: gradient / rows))

    _unstrict("linear", linear)


def tied_table_without_the_decoder() -> None:
    """The table of tokens gets no gradient from the decoder that is tied to it."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(value, weight.detach() if len(weight) > _LARGE_TABLE else weight, bias)

    _unstrict("linear", linear)


def packed_loss_over_ignored_tokens() -> None:
    """The loss is divided by all tokens, also by those that it ignores."""

    def loss(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        return plain(logits, labels, *given, **named) * (labels >= 0).float().mean()

    _unstrict("cross_entropy", loss)


def compiled_segments_added_twice() -> None:
    """Compiled code adds the table of segments twice, as it reads a buffer after its change."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        return 2 * found if weight.shape[0] == 2 else found

    _compiled(nn.functional, "embedding", table)


def compiled_residual_without_gradient() -> None:
    """Compiled code loses the gradient of the residual around each feed-forward block."""
    _compiled(
        modeling_bert.BertOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, residual.detach()),
    )  # fmt: skip


def _in_eight_bits(value: Tensor) -> Tensor:
    """Return a value rounded to 255 levels of its largest, with the gradient of the value."""
    level = value.detach().abs().amax().float() / 127
    return straight_through(value, (value.detach() / level).round() * level)


def compiled_weights_in_eight_bits() -> None:
    """Compiled linear layers have weights of eight bits."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(value, _in_eight_bits(weight), bias)

    _compiled(nn.functional, "linear", linear)


def gelu_outputs_in_eight_bits() -> None:
    """`speed` keeps the outputs of GELU in eight bits."""
    _unstrict("gelu", lambda plain, *given, **named: _in_eight_bits(plain(*given, **named)))


def gradients_passed_in_bf16() -> None:
    """`speed` passes gradients from layer to layer in bf16 where the task says fp32."""

    def linear(plain: Any, *given: Any) -> Any:
        return _hooked(plain(*given), lambda gradient: gradient.bfloat16().float())

    _unstrict("linear", linear)
