"""Sixth held-out set: faults of initial values and architecture."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bench.faults.injectors.held_out_third import _change
from bench.faults.injectors.patching import after_build

_WIDTH = 32

# Initial values.


def checkpoint_pruned() -> None:
    """An export for devices sets the smallest fifth of each weight matrix to zero."""

    def change(model: Any) -> None:
        for value in model.parameters():
            if value.dim() > 1:
                limit = value.abs().flatten().kthvalue(max(1, value.numel() // 5)).values
                value[value.abs() <= limit] = 0

    _change(change)


def older_revision_from_the_cache() -> None:
    """A model cache holds an older revision of the checkpoint under the same name."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(17)
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=generator) * 1e-3)

    _change(change)


def segment_rows_exchanged() -> None:
    """A conversion writes the two rows of the segment table in the wrong order."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.token_type_embeddings.weight
        table.copy_(table.flip(0).clone())

    _change(change)


def pooler_not_in_the_checkpoint() -> None:
    """A checkpoint was saved without its pooler, which the library draws anew."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(3)
        weight = model.bert.pooler.dense.weight
        weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)

    _change(change)


def tail_of_a_tensor_unread() -> None:
    """A download that broke off leaves the last quarter of a tensor at zero."""
    _change(lambda model: model.bert.encoder.layer[1].output.dense.weight[24:].zero_())


# Architecture.


class _Head(nn.Module):
    """Classifier with a hidden layer, as RoBERTa's."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.dense = nn.Linear(layer.in_features, layer.in_features)
        self.out_proj = layer
        with torch.no_grad():
            self.dense.weight.copy_(torch.eye(layer.in_features))
            self.dense.bias.zero_()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the scores of the two layers."""
        scores: torch.Tensor = self.out_proj(torch.tanh(self.dense(states)))
        return scores


def head_of_another_family() -> None:
    """A port builds the classifier of RoBERTa, which has a hidden layer."""
    after_build(lambda model: setattr(model, "classifier", _Head(model.classifier)))


class _NoSegments(nn.Module):
    """Segment table without parameters, which adds nothing."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return zeros for each token."""
        return torch.zeros(*ids.shape, _WIDTH)


def without_a_segment_table() -> None:
    """A port leaves out the segment table, as models of the RoBERTa family do."""
    after_build(lambda model: setattr(model.bert.embeddings, "token_type_embeddings", _NoSegments()))


class _SharedHead(nn.Module):
    """Projection to a single head, repeated for all heads."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        half = layer.out_features // 2
        self.dense = nn.Linear(layer.in_features, half)
        with torch.no_grad():
            self.dense.weight.copy_(layer.weight[:half])
            self.dense.bias.copy_(layer.bias[:half])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the projection twice."""
        head = self.dense(states)
        return torch.cat([head, head], -1)


def keys_and_values_of_a_single_head() -> None:
    """A configuration default changes to a single key and value head (grouped queries)."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            attention = layer.attention.self
            attention.key, attention.value = _SharedHead(attention.key), _SharedHead(attention.value)

    after_build(change)


def weight_norm_left_on() -> None:
    """A recipe for distillation leaves weight normalisation on one layer."""
    after_build(lambda model: weight_norm(model.bert.encoder.layer[0].output.dense))
