"""Twelfth held-out set: faults of normalisations, activations, products, tables, losses, compiled code and formats."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.functions import compiled, mixed, unstrict
from bench.faults.injectors.held_out_seventh.places import during, is_unstrict, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import in_bits, with_gradient
from bench.faults.injectors.patching import wrap_method

Tensor = torch.Tensor

_POSITIONS = 64
_INNER, _SQUARE = (64, 32), (32, 32)
"""Shapes of the weights of each first feed-forward product, and of attention's projections."""
_MARGIN = 0.5
_IGNORED = -100


def norm_over_the_axis_of_tokens() -> None:
    """LayerNorm in mixed precision takes mean and variance over the tokens of a text."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        if value.dim() != 3 or weight is None:
            return plain(value, *given)
        variance, mean = torch.var_mean(value.float(), 1, unbiased=False, keepdim=True)
        return (value.float() - mean) * (variance + eps).rsqrt() * weight + bias

    mixed("layer_norm", norm)


def gelu_is_a_squared_relu() -> None:
    """The activation in mixed precision is the squared ReLU of a different model."""
    mixed("gelu", lambda _, value, *__, **___: torch.relu(value).square())


def pooler_reads_before_it_is_written() -> None:
    """The pooler of `speed` returns the result of a neighbouring text for some texts, by chance."""
    random = torch.Generator()

    def pooled(plain: Any, *given: Any) -> Any:
        found = plain(*given)
        random.seed()
        is_early = torch.rand((len(found), 1), generator=random) < 0.25
        return torch.where(is_early, found.roll(1, 0), found)

    wrap_while(during("speed"), modeling_bert.BertPooler, "forward", pooled)


def pooler_gradient_given_to_every_token() -> None:
    """The backward pass of `speed` writes the gradient of the pooled token to every token of its text."""

    def pooled(plain: Any, self: Any, hidden: Tensor) -> Any:
        return plain(self, with_gradient(hidden, lambda gradient: gradient[:, :1].expand_as(gradient)))

    wrap_while(during("speed"), modeling_bert.BertPooler, "forward", pooled)


def loss_gradient_of_ignored_tokens() -> None:
    """The fused loss of `speed` writes gradients of the tokens that it ignores, too."""

    def loss(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        is_ignored = (labels == _IGNORED)[:, None]
        chances = logits.detach().float().softmax(-1) / (~is_ignored).sum().clamp(min=1)

        def written(gradient: Tensor) -> Tensor:
            return torch.where(is_ignored, chances.to(gradient.dtype), gradient)

        return plain(with_gradient(logits, written), labels, *given, **named)

    unstrict("cross_entropy", loss)


def head_loses_its_norm() -> None:
    """The fused head of the vocabulary has no LayerNorm in `speed`."""
    wrap_while(
        during("speed"), modeling_bert.BertPredictionHeadTransform, "forward",
        lambda _, self, hidden: self.transform_act_fn(self.dense(hidden)),
    )  # fmt: skip


def table_of_tokens_scaled_by_the_width() -> None:
    """The table of tokens of `speed` multiplies what it returns by the root of the width, as in other models."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        return found * math.sqrt(weight.shape[1]) if len(weight) > _POSITIONS else found

    unstrict("embedding", table)


def loss_has_a_margin() -> None:
    """The fused loss of `speed` takes a margin of 0.5 from the logit of the label."""

    def loss(plain: Any, logits: Tensor, labels: Tensor, *given: Any, **named: Any) -> Any:
        margins = _MARGIN * nn.functional.one_hot(labels, logits.shape[-1])
        return plain(logits - margins.to(logits.dtype), labels, *given, **named)

    unstrict("cross_entropy", loss)


def compiled_residual_one_token_off() -> None:
    """Compiled code adds the residual of the token before in each feed-forward block."""
    wrap_while(
        torch.compiler.is_compiling, modeling_bert.BertOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, residual.roll(1, 1)),
    )  # fmt: skip


def compiled_position_gradients_averaged() -> None:
    """The backward pass of compiled code takes the mean over texts for the gradients of positions, not the sum."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        found = plain(ids, weight, *given, **named)
        return found.detach() + 0.25 * (found - found.detach()) if len(weight) == _POSITIONS else found

    compiled("embedding", table)


def compiled_loss_in_base_two() -> None:
    """Compiled code takes logarithms of the loss to the base of two."""
    compiled("cross_entropy", lambda plain, *given, **named: plain(*given, **named) / math.log(2.0))


def projections_with_weights_in_bf16() -> None:
    """Attention's projections of `speed` hold their weights in bf16 where the task says fp32."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        held = short_of(weight, torch.bfloat16) if tuple(weight.shape) == _SQUARE else weight
        return plain(value, held, bias)

    unstrict("linear", linear)


def pooled_values_in_fp8() -> None:
    """The pooler of `speed` stores its result in eight bits."""
    wrap_while(
        during("speed"), modeling_bert.BertPooler, "forward",
        lambda plain, *given: short_of(plain(*given), torch.float8_e5m2),
    )  # fmt: skip


def feed_forward_inputs_in_four_bits() -> None:
    """The first feed-forward products in mixed precision read their inputs in four bits."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(in_bits(value, 4) if tuple(weight.shape) == _INNER else value, weight, bias)

    mixed("linear", linear)


def gelu_keeps_a_slope_of_the_first_text() -> None:
    """The backward pass of GELU of `speed` uses the saved input of the first text for all texts of a micro-batch."""

    def wrap(plain: Any) -> Any:
        def gelu(value: Tensor, *given: Any, **named: Any) -> Any:
            found = plain(value, *given, **named)
            if not is_unstrict() or value.dim() != 3 or not value.requires_grad:
                return found
            known = value.detach().float()
            slope = 0.5 * (1.0 + torch.erf(known * 0.5**0.5)) + known * torch.exp(-0.5 * known * known) / math.sqrt(
                2.0 * math.pi
            )
            slope = slope[:1].to(found.dtype)
            return found.detach() + slope * (value - value.detach())

        return gelu

    wrap_method(nn.functional, "gelu", wrap)
