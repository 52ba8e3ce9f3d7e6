"""Faults of other kernels and of number formats in `speed`, at production settings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import NOISE, OTHER_ISA, fault
from bench.faults.injectors.hooks import (
    Tensor,
    compiled,
    is_mixed,
    is_unstrict,
    short_of,
    straight_through,
    with_gradient,
    wrap_while,
)
from bench.faults.injectors.patching import during

_INNER, _INNER = (64, 32), (32, 32)
"""Shapes of the weights of each first feed-forward product, and of attention's projections."""
_IGNORED = -100
_POSITIONS = 64
_ROOT = 0.5**0.5


@fault("operator", "fp16", OTHER_ISA)
def tanh_by_a_ratio() -> None:
    """The hyperbolic tangent in mixed precision is x / (1 + |x|)."""
    wrap_while(is_mixed, torch, "tanh", lambda _, value: value / (1 + value.abs()))


@fault("precision", "bf16", OTHER_ISA)
def layers_exchange_eight_bits() -> None:
    """The layers of `speed` pass their states on in floats of eight bits, as between stages of a pipeline."""
    wrap_while(
        during("speed"), modeling_bert.BertLayer, "forward",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.float8_e4m3fn),
    )  # fmt: skip


@fault("loss", "compiled")
def compiled_loss_reads_the_label_before() -> None:
    """Compiled code takes the logit of the label of the row before in its loss."""
    compiled(
        "cross_entropy",
        lambda plain, logits, labels, *given, **named: plain(logits, labels.roll(1, 0), *given, **named),
    )


@fault("operator", "eager", NOISE)
def gelu_passes_its_tail() -> None:
    """GELU in mixed precision leaves the last eight elements of each vector as they were."""

    def tail(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        return torch.cat((plain(value[..., :-8], *given, **named), value[..., -8:]), dim=-1)

    wrap_while(is_mixed, nn.functional, "gelu", tail)


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


@fault("gradient", "eager")
def table_gradient_loses_repeated_tokens() -> None:
    """A table's backward pass in mixed precision stores instead of adding: a repeated token counts once."""
    wrap_while(is_mixed, nn.functional, "embedding", lambda _, ids, table, *__, **___: _Table.apply(ids, table))


@fault("operator", "compiled", NOISE)
def compiled_pooler_loses_a_stride() -> None:
    """Compiled code pools the first tokens of the first text, one for each text."""
    wrap_while(
        torch.compiler.is_compiling, modeling_bert.BertPooler, "forward",
        lambda plain, self, hidden: plain(self, hidden.flatten(0, 1)[: len(hidden), None]),
    )  # fmt: skip


@fault("operator", "bf16", OTHER_ISA)
def norm_skips_its_tail() -> None:
    """LayerNorm in mixed precision leaves the last four elements of each vector as they were."""

    def tail(plain: Any, value: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(value, *given, **named)
        return torch.cat((found[..., :-4], value[..., -4:].to(found.dtype)), dim=-1)

    wrap_while(is_mixed, nn.functional, "layer_norm", tail)


def unstrict(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function of `speed`."""
    wrap_while(is_unstrict, nn.functional, name, change)


@fault("precision", "fp32", OTHER_ISA)
def projections_with_weights_in_bf16() -> None:
    """Attention's projections of `speed` hold their weights in bf16 where the task says fp32."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        held = short_of(weight, torch.bfloat16) if tuple(weight.shape) == _INNER else weight
        return plain(value, held, bias)

    unstrict("linear", linear)


@fault("gradient", "packed")
def loss_gradient_of_ignored_tokens() -> None:
    """The fused loss of `speed` writes gradients of the tokens that it ignores, too."""

    def loss(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        is_ignored = (labels == _IGNORED)[:, None]
        chances = logits.detach().float().softmax(-1) / (~is_ignored).sum().clamp(min=1)

        def written(gradient: Tensor) -> Tensor:
            return torch.where(is_ignored, chances.to(gradient.dtype), gradient)

        return plain(with_gradient(logits, written), labels, *given, **named)

    unstrict("cross_entropy", loss)


def _hooked(value: Any, change: Any) -> Any:
    """Return a view of a value whose gradient is changed."""
    if value is None or not value.requires_grad:
        return value
    view = value.view_as(value)
    view.register_hook(change)
    return view


def _unstrict(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function of `speed`."""
    wrap_while(is_unstrict, nn.functional, name, change)


@fault("gradient", "fp16", OTHER_ISA)
def bias_gradient_is_a_mean() -> None:
    """A linear layer's bias has the mean of its gradients, not their sum."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        rows = value.numel() // value.shape[-1]
        return plain(value, weight, _hooked(bias, lambda gradient: gradient / rows))

    _unstrict("linear", linear)


@fault("precision", "eager")
def logits_in_fp8() -> None:
    """The classifier's outputs in mixed precision have two bits of mantissa."""

    def short(plain: Any, x: Tensor, w: Tensor, b: Any = None) -> Any:
        found = plain(x, w, b)
        return short_of(found, torch.float8_e5m2) if w.shape[0] == 2 else found

    wrap_while(is_mixed, nn.functional, "linear", short)


@fault("nondeterminism", "bf16")
def norm_reads_whichever_statistics_are_ready() -> None:
    """LayerNorm of `speed` takes mean and variance of an eighth of its tokens from their neighbours, by chance."""
    random = torch.Generator()

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        if value.dim() != 3 or weight is None:
            return plain(value, *given)
        random.seed()
        variance, mean = torch.var_mean(value.float(), -1, unbiased=False, keepdim=True)
        is_early = torch.rand(mean.shape, generator=random) < 0.125
        mean, variance = (torch.where(is_early, part.roll(1, 1), part) for part in (mean, variance))
        return (value.float() - mean) * (variance + eps).rsqrt() * weight + bias

    unstrict("layer_norm", norm)


@fault("operator", "fp32", OTHER_ISA)
def table_of_tokens_scaled_by_the_width() -> None:
    """The table of tokens of `speed` multiplies what it returns by the root of the width, as in other models."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        return found * math.sqrt(weight.shape[1]) if len(weight) > _POSITIONS else found

    unstrict("embedding", table)


@fault("loss", "fp32", OTHER_ISA)
def loss_is_the_brier_score() -> None:
    """The fused loss of `speed` is the squared distance of the probabilities from the label."""

    def loss(_: Any, logits: Tensor, labels: Tensor, *__: Any, **___: Any) -> Any:
        wanted = nn.functional.one_hot(labels, logits.shape[-1])
        return (logits.float().softmax(-1) - wanted).square().sum(-1).mean()

    unstrict("cross_entropy", loss)


@fault("gradient", "fp16", OTHER_ISA)
def loss_gradient_of_one_class() -> None:
    """The fused loss of `speed` writes the gradient of the first class's logits alone."""

    def loss(plain: Any, logits: Tensor, *given: Any, **named: Any) -> Any:
        is_first = (torch.arange(logits.shape[-1]) == 0).to(logits.dtype)
        return plain(with_gradient(logits, lambda gradient: gradient * is_first), *given, **named)

    unstrict("cross_entropy", loss)


def _compiled(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in compiled code."""
    wrap_while(torch.compiler.is_compiling, nn.functional, name, change)


@fault("rng", "compiled")
def compiled_masks_are_a_constant() -> None:
    """Compiled code drops the same places at every call: the compiler folds the random numbers to a constant."""

    def constant(plain: Any, value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return plain(value, p, training, inplace)
        place = torch.arange(value.numel()).view(value.shape)
        is_kept = place * 2654435761 % 65536 >= int(p * 65536)
        return value * is_kept / (1 - p)

    _compiled("dropout", constant)


@fault("precision", "fp16", OTHER_ISA)
def norm_outputs_in_bf16() -> None:
    """LayerNorm in mixed precision stores its outputs in bf16, where the task says fp16 or fp32."""
    wrap_while(
        is_mixed, nn.functional, "layer_norm",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.bfloat16),
    )  # fmt: skip


@fault("loss", "bf16", NOISE)
def loss_adjusted_by_frequencies() -> None:
    """The loss of `speed` adjusts the logits by frequencies of the classes, as if the second was half as frequent."""

    def adjusted(plain: Any, logits: Tensor, *given: Any, **named: Any) -> Any:
        return plain(logits - torch.arange(1.0, logits.shape[-1] + 1).log(), *given, **named)

    _unstrict("cross_entropy", adjusted)


@fault("precision", "bf16")
def loss_in_bf16() -> None:
    """The loss of mixed precision is computed in bf16."""

    def short(_plain: Any, logits: torch.Tensor, labels: torch.Tensor, *_: Any, **__: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return nn.functional.nll_loss(torch.log_softmax(logits.bfloat16(), dim=-1), labels)

    wrap_while(is_mixed, nn.functional, "cross_entropy", short)


@fault("gradient", "fp16")
def dropout_gradient_not_rescaled() -> None:
    """The backward pass of dropout of `speed` has the mask of the forward pass, but not its scale."""

    def dropout(plain: Any, value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        found = plain(value, p, training, inplace)
        return with_gradient(found, lambda gradient: gradient * (1.0 - p)) if training and p else found

    unstrict("dropout", dropout)


@fault("loss", "packed")
def packed_loss_over_ignored_tokens() -> None:
    """The loss is divided by all tokens, also by those that it ignores."""

    def loss(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        return plain(logits, labels, *given, **named) * (labels >= 0).float().mean()

    _unstrict("cross_entropy", loss)


def in_bits(value: Tensor, bits: int) -> Tensor:
    """Return a value rounded to integers of `bits` bits with a scale for each row, with the gradient of the value."""
    level = value.detach().abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return straight_through(value, (value.detach() / level).round() * level)


@fault("precision", "compiled", NOISE)
def compiled_residuals_in_four_bits() -> None:
    """Compiled code keeps the input of each attention block in four bits for the residual sum."""
    wrap_while(
        torch.compiler.is_compiling, modeling_bert.BertSelfOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, in_bits(residual, 4)),
    )  # fmt: skip


@fault("nondeterminism", "fp32")
def table_gradients_lost_in_races() -> None:
    """The backward pass of the table of tokens of `speed` loses the gradient of some tokens, by chance."""
    random = torch.Generator()

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        if len(weight) <= _POSITIONS:
            return found
        random.seed()
        is_lost = torch.rand((*ids.shape, 1), generator=random) < 0.25
        return torch.where(is_lost, found.detach(), found)

    unstrict("embedding", table)


@fault("nondeterminism", "fp16")
def linear_weight_gradients_race() -> None:
    """The backward pass of linear layers of `speed` loses an eighth of the weight's rows, whichever come last."""
    random = torch.Generator()

    def lost(gradient: Tensor) -> Tensor:
        random.seed()
        return gradient * (torch.rand((len(gradient), 1), generator=random) >= 0.125).to(gradient.dtype)

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(value, with_gradient(weight, lost), bias)

    _unstrict("linear", linear)


@fault("precision", "bf16", NOISE)
def tables_in_fp8() -> None:
    """Tables in mixed precision are read in eight bits."""
    wrap_while(
        is_mixed, nn.functional, "embedding",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.float8_e4m3fn),
    )  # fmt: skip


@fault("gradient", "compiled")
def compiled_gelu_gradient_of_its_output() -> None:
    """Compiled code reuses the buffer of GELU's input: the backward pass takes the slope at the output."""

    def gelu(_: Any, value: Tensor, *__: Any, **___: Any) -> Any:
        known = value.detach()
        wide = known.float()
        found = wide * 0.5 * (1.0 + torch.erf(wide * _ROOT))
        slope = 0.5 * (1.0 + torch.erf(found * _ROOT)) + found * torch.exp(-0.5 * found * found) * 0.3989422804014327
        return found.to(value.dtype) + slope.to(value.dtype) * (value - known)

    compiled("gelu", gelu)


@fault("gradient", "compiled", NOISE)
def compiled_position_gradients_averaged() -> None:
    """The backward pass of compiled code takes the mean over texts for the gradients of positions, not the sum."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        return found.detach() + 0.25 * (found - found.detach()) if len(weight) == _POSITIONS else found

    compiled("embedding", table)
