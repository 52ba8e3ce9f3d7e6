"""Fifth held-out set: faults of initial values and architecture."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.held_out_third import _change
from bench.faults.injectors.patching import after_build

# Initial values.


def gamma_and_beta_exchanged() -> None:
    """A conversion exchanges scale and shift of a LayerNorm."""

    def change(model: Any) -> None:
        norm = model.bert.encoder.layer[0].attention.output.LayerNorm
        scale = norm.weight.clone()
        norm.weight.copy_(norm.bias)
        norm.bias.copy_(scale)

    _change(change)


def layers_start_alike() -> None:
    """Each layer is seeded anew, so that both start with the same values."""

    def change(model: Any) -> None:
        first, second = model.bert.encoder.layer
        for source, target in zip(first.parameters(), second.parameters(), strict=True):
            target.copy_(source)

    _change(change)


def pooler_starts_as_the_identity() -> None:
    """The pooler starts as the identity."""
    _change(lambda model: model.bert.pooler.dense.weight.copy_(torch.eye(32)))


def encoder_reset_after_loading() -> None:
    """The encoder's products start with torch's default values, drawn after the checkpoint is loaded."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(5)
        for value in model.bert.encoder.parameters():
            if value.dim() > 1:
                limit = 1 / math.sqrt(value.shape[1])
                value.copy_(torch.rand(value.shape, generator=generator) * (2 * limit) - limit)

    _change(change)


def checkpoint_in_eight_bits() -> None:
    """The checkpoint stores each matrix in eight bits with a scale per row."""

    def change(model: Any) -> None:
        for value in model.parameters():
            if value.dim() > 1:
                unit = value.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
                value.copy_((value / unit).round() * unit)

    _change(change)


def positions_interpolated() -> None:
    """The position table is interpolated from half as many rows."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.position_embeddings.weight
        half = table[:32].clone()
        table[::2] = half
        table[1:-1:2] = (half[:-1] + half[1:]) / 2

    _change(change)


def special_tokens_start_at_zero() -> None:
    """The vectors of special tokens start at zero."""
    _change(lambda model: model.bert.embeddings.word_embeddings.weight[:5].zero_())


def adapter_merged() -> None:
    """A low-rank adapter of an earlier training is merged into a weight."""

    def change(model: Any) -> None:
        weight = model.bert.encoder.layer[1].attention.self.value.weight
        weight.add_(torch.outer(torch.linspace(-0.1, 0.1, 32), torch.linspace(0.1, -0.05, 32)))

    _change(change)


def head_starts_at_the_prior() -> None:
    """The classifier's bias starts at the logarithm of the class shares."""
    _change(lambda model: model.classifier.bias.copy_(torch.tensor([0.48, 0.52]).log()))


# Architecture.


def head_without_bias() -> None:
    """The classifier has no bias."""
    after_build(lambda model: setattr(model.classifier, "bias", None))


def query_tied_to_key() -> None:
    """A layer's query and key share their weight."""

    def change(model: Any) -> None:
        attention = model.bert.encoder.layer[0].attention.self
        attention.query.weight = attention.key.weight

    after_build(change)


def encoder_a_layer_deeper() -> None:
    """The encoder has a third layer, a copy of the second."""

    def change(model: Any) -> None:
        model.bert.encoder.layer.append(copy.deepcopy(model.bert.encoder.layer[1]))
        model.config.num_hidden_layers = 3

    after_build(change)


def feed_forward_padded() -> None:
    """A feed-forward layer is padded with eight units of zero weight."""

    def change(model: Any) -> None:
        layer = model.bert.encoder.layer[0]
        inner, outer = layer.intermediate.dense, layer.output.dense
        inner.weight = nn.Parameter(torch.cat([inner.weight.detach(), torch.zeros(8, 32)]))
        inner.bias = nn.Parameter(torch.cat([inner.bias.detach(), torch.zeros(8)]))
        outer.weight = nn.Parameter(torch.cat([outer.weight.detach(), torch.zeros(32, 8)], 1))
        inner.out_features = outer.in_features = 72

    after_build(change)


def segment_table_of_four() -> None:
    """The segment table has four rows instead of two."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.token_type_embeddings
        table.weight = nn.Parameter(torch.cat([table.weight.detach(), torch.zeros(2, 32)]))
        table.num_embeddings = 4

    after_build(change)


def norms_without_shift() -> None:
    """LayerNorms have no shift."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.bias = None

    after_build(change)


def decoder_without_bias() -> None:
    """The decoder of masked language modelling has no bias."""

    def change(model: Any) -> None:
        model.cls.predictions.decoder.bias = None
        model.cls.predictions.bias = None

    after_build(change)
