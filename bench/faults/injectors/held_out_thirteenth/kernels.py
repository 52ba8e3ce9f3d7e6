"""Thirteenth held-out set: faults of normalisations, products, tables, residuals, losses and compiled code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.functions import compiled, mixed, unstrict
from bench.faults.injectors.held_out_seventh.places import during, short_of, wrap_while
from bench.faults.injectors.held_out_tenth.values import with_gradient

Tensor = torch.Tensor

_POSITIONS = 64
_FEED_FORWARD, _SQUARE = ((64, 32), (32, 64)), (32, 32)
"""Shapes of the weights of both feed-forward products, and of attention's projections and the pooler."""
_LARGEST = 448.0
"""Largest number of the format with four bits of exponent."""


def norm_by_the_mean_absolute_deviation() -> None:
    """LayerNorm in mixed precision divides by the mean absolute deviation, not by the root of the variance."""

    def norm(plain: Any, value: Tensor, *given: Any) -> Any:
        _, weight, bias, eps = given
        if value.dim() != 3 or weight is None:
            return plain(value, *given)
        centred = value.float() - value.float().mean(-1, keepdim=True)
        return centred / (centred.abs().mean(-1, keepdim=True) + eps) * weight + bias

    mixed("layer_norm", norm)


def products_of_sparse_weights() -> None:
    """Feed-forward products of `speed` read the two largest of each four weights, as semi-structured kernels do."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        if tuple(weight.shape) not in _FEED_FORWARD:
            return plain(value, weight, bias)
        fours = weight.unflatten(1, (-1, 4))
        is_kept = torch.zeros_like(fours).scatter(-1, fours.detach().abs().topk(2, dim=-1).indices, 1.0)
        return plain(value, (fours * is_kept).flatten(1), bias)

    unstrict("linear", linear)


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


def residual_gradient_counted_twice() -> None:
    """The backward pass of the fused sum and LayerNorm of `speed` adds the residual's gradient twice."""
    wrap_while(
        during("speed"), modeling_bert.BertOutput, "forward",
        lambda plain, self, value, residual: plain(self, value, with_gradient(residual, lambda each: each * 2.0)),
    )  # fmt: skip


def vocabulary_gradient_of_the_last_chunk() -> None:
    """The fused head of the vocabulary computes in two chunks, and keeps the last one's gradient of the weight."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        if len(weight) <= _POSITIONS:
            return plain(value, weight, bias)
        first, last = value.tensor_split(2, dim=1)
        return torch.cat((plain(first, weight.detach(), bias), plain(last, weight, bias)), dim=1)

    unstrict("linear", linear)


def square_input_gradient_by_the_transposed_weight() -> None:
    """The backward pass of square products in mixed precision multiplies by the transposed weight for the input."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        if tuple(weight.shape) != _SQUARE or not value.requires_grad:
            return plain(value, weight, bias)
        wrong = plain(value, weight.detach().t())
        return plain(value.detach(), weight, bias) + (wrong - wrong.detach())

    mixed("linear", linear)


def positions_added_behind_the_norm() -> None:
    """`speed` adds positions behind the LayerNorm of the embeddings."""

    def placed(
        _: Any, self: Any, input_ids: Any = None, token_type_ids: Any = None, position_ids: Any = None, *__: Any,
        **___: Any,
    ) -> Any:  # fmt: skip
        places = torch.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
        found = self.LayerNorm(self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids))
        return self.dropout(found + self.position_embeddings(places))

    wrap_while(during("speed"), modeling_bert.BertEmbeddings, "forward", placed)


def loss_is_the_brier_score() -> None:
    """The fused loss of `speed` is the squared distance of the probabilities from the label."""

    def loss(_: Any, logits: Tensor, labels: Tensor, *__: Any, **___: Any) -> Any:
        wanted = nn.functional.one_hot(labels, logits.shape[-1])
        return (logits.float().softmax(-1) - wanted).square().sum(-1).mean()

    unstrict("cross_entropy", loss)


def compiled_loss_reads_the_label_before() -> None:
    """Compiled code takes the logit of the label of the row before in its loss."""
    compiled(
        "cross_entropy",
        lambda plain, logits, labels, *given, **named: plain(logits, labels.roll(1, 0), *given, **named),
    )


def compiled_pooler_loses_a_stride() -> None:
    """Compiled code pools the first tokens of the first text, one for each text."""
    wrap_while(
        torch.compiler.is_compiling, modeling_bert.BertPooler, "forward",
        lambda plain, self, hidden: plain(self, hidden.flatten(0, 1)[: len(hidden), None]),
    )  # fmt: skip


def _in_eight_bits(value: Tensor) -> Tensor:
    """Return a value in floats of eight bits with one scale, with the gradient of the value."""
    known = value.detach()
    scale = known.abs().amax().clamp(min=1e-12) / _LARGEST
    return value + ((known / scale).to(torch.float8_e4m3fn).to(value.dtype) * scale - known)


def compiled_products_of_eight_bit_floats() -> None:
    """Compiled linear layers read inputs and weights in floats of eight bits with a scale for each tensor."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(_in_eight_bits(value), _in_eight_bits(weight), bias)

    compiled("linear", linear)


def layers_exchange_eight_bits() -> None:
    """The layers of `speed` pass their states on in floats of eight bits, as between stages of a pipeline."""
    wrap_while(
        during("speed"), modeling_bert.BertLayer, "forward",
        lambda plain, *given, **named: short_of(plain(*given, **named), torch.float8_e4m3fn),
    )  # fmt: skip
