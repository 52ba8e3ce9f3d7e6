"""Eleventh held-out set: faults of normalisations, activations, products, tables, losses, compiled code and formats."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.bert import modeling_bert

from bench.faults.injectors.functions import compiled, mixed, unstrict
from bench.faults.injectors.held_out_seventh.places import (
    during,
    is_mixed,
    short_of,
    straight_through,
    wrap_while,
)
from bench.faults.injectors.held_out_tenth.values import in_bits, with_gradient
from bench.faults.injectors.patching import wrap_method

Tensor = torch.Tensor

_CHUNK, _TILE = 8, 64
_OUTER = (32, 64)
"""Shape of the weights of each second feed-forward product."""
_OF_TABLES = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
"""Names of the arguments of `embedding` after ids and weights, in order."""
_TF32_DROPPED = 13
_ROOT = 0.5**0.5
_EPS = 1e-2


def norm_statistics_of_two_tokens() -> None:
    """LayerNorm in mixed precision has one mean and one variance for each two neighbouring tokens."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        if value.dim() != 3 or weight is None:
            return plain(value, *given)
        pairs = value.float().unflatten(1, (-1, 2))
        variance, mean = torch.var_mean(pairs, (-2, -1), unbiased=False, keepdim=True)
        return ((pairs - mean) * (variance + eps).rsqrt()).flatten(1, 2) * weight + bias

    mixed("layer_norm", norm)


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


def gelu_is_zero_below_minus_one() -> None:
    """GELU in mixed precision is zero for inputs below minus one, where its approximation ends."""
    mixed(
        "gelu",
        lambda plain, value, *given, **named: plain(value, *given, **named).masked_fill(value < -1.0, 0.0),
    )


def first_layer_repeats_a_chunk() -> None:
    """The first layer of `speed` computes its feed-forward part in chunks of bf16, and stores the first one twice."""
    acts = during("speed")

    def wrap(plain: Any) -> Any:
        # transformers counts the arguments.
        def chunked(self: Any, attention_output: Tensor) -> Any:
            found = plain(self, attention_output)
            if not (acts() and is_mixed()) or self.attention.self.layer_idx or found.shape[1] < 2 * _CHUNK:
                return found
            return torch.cat((found[:, :_CHUNK], found[:, :_CHUNK], found[:, 2 * _CHUNK :]), dim=1)

        return chunked

    wrap_method(modeling_bert.BertLayer, "feed_forward_chunk", wrap)


def dropout_gradient_not_rescaled() -> None:
    """The backward pass of dropout of `speed` has the mask of the forward pass, but not its scale."""

    def dropout(plain: Any, value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        found = plain(value, p, training, inplace)
        return with_gradient(found, lambda gradient: gradient * (1.0 - p)) if training and p else found

    unstrict("dropout", dropout)


def table_gradients_divided_by_counts() -> None:
    """The backward pass of the tables of `speed` divides each row's gradient by the number of its tokens."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        known = dict(zip(_OF_TABLES, given, strict=False)) | named
        return plain(ids, weight, **known | {"scale_grad_by_freq": True})

    unstrict("embedding", table)


def loss_gradient_of_one_class() -> None:
    """The fused loss of `speed` writes the gradient of the first class's logits alone."""

    def loss(plain: Any, logits: Tensor, *given: Any, **named: Any) -> Any:
        is_first = (torch.arange(logits.shape[-1]) == 0).to(logits.dtype)
        return plain(with_gradient(logits, lambda gradient: gradient * is_first), *given, **named)

    unstrict("cross_entropy", loss)


def decoder_leaves_its_last_tile_at_zero() -> None:
    """The product of the vocabulary in mixed precision stores whole tiles of 64 logits: the rest is zero."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        found = plain(value, weight, bias)
        if len(weight) <= 2 * _TILE:
            return found
        whole = (len(weight) - 1) // _TILE * _TILE
        return torch.cat((found[..., :whole], torch.zeros_like(found[..., whole:])), dim=-1)

    mixed("linear", linear)


def compiled_norm_hoists_its_statistics() -> None:
    """Compiled code takes mean and variance of LayerNorm out of the loop over tokens: all have those of the first."""

    def norm(_: Any, value: Tensor, *given: Any) -> Any:
        _shape, weight, bias, eps = given
        variance, mean = torch.var_mean(value[:, :1], -1, unbiased=False, keepdim=True)
        return (value - mean) * torch.rsqrt(variance + eps) * weight + bias

    compiled("layer_norm", norm)


def compiled_gelu_gradient_of_its_output() -> None:
    """Compiled code reuses the buffer of GELU's input: the backward pass takes the slope at the output."""

    def gelu(_: Any, value: Tensor, *__: Any, **___: Any) -> Any:
        known = value.detach()
        wide = known.float()
        found = wide * 0.5 * (1.0 + torch.erf(wide * _ROOT))
        slope = 0.5 * (1.0 + torch.erf(found * _ROOT)) + found * torch.exp(-0.5 * found * found) * 0.3989422804014327
        return found.to(value.dtype) + slope.to(value.dtype) * (value - known)

    compiled("gelu", gelu)


def compiled_loss_adds_an_eps() -> None:
    """Compiled code takes the logarithm of probabilities plus 0.01."""

    def loss(_: Any, logits: Tensor, labels: Tensor, *__: Any, **___: Any) -> Any:
        chances = torch.softmax(logits.float(), -1).gather(-1, labels[:, None])
        return -(chances + _EPS).log().mean()

    compiled("cross_entropy", loss)


def compiled_residuals_in_four_bits() -> None:
    """Compiled code keeps the input of each attention block in four bits for the residual sum."""
    wrap_while(
        torch.compiler.is_compiling, modeling_bert.BertSelfOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, in_bits(residual, 4)),
    )  # fmt: skip


def _tf32(value: Tensor) -> Tensor:
    """Return a value of fp32 with ten bits of mantissa, with the gradient of the value."""
    words = value.detach().contiguous().view(torch.int32)
    kept = (words + (1 << (_TF32_DROPPED - 1))) & -(1 << _TF32_DROPPED)
    return straight_through(value, kept.view(torch.float32))


def speed_products_of_ten_bits() -> None:
    """Linear layers of `speed` multiply in TF32 where the task says fp32."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        is_wide = value.dtype == weight.dtype == torch.float32
        return plain(_tf32(value), _tf32(weight), bias) if is_wide else plain(value, weight, bias)

    unstrict("linear", linear)


def feed_forward_sums_in_fp8() -> None:
    """The second feed-forward products in mixed precision store their results in eight bits."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        found = plain(value, weight, bias)
        return short_of(found, torch.float8_e5m2) if tuple(weight.shape) == _OUTER else found

    mixed("linear", linear)
