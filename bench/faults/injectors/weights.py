"""Faults of initial weights and of the model's architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bench.faults.catalogue import fault
from bench.faults.injectors.patching import after_build

_WIDTH = 32


def _change(change: Callable[[Any], None]) -> None:
    def changed(model: Any) -> None:
        with torch.no_grad():
            change(model)

    after_build(changed)


@fault("weights.init")
def normal_truncated() -> None:
    """Initial values come from a truncated normal distribution (pytorch/torchtitan#4104)."""
    _change(lambda model: [value.clamp_(-0.04, 0.04) for value in model.parameters() if value.dim() > 1])


class _NoSegments(nn.Module):
    """Segment table without parameters, which adds nothing."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return zeros for each token."""
        return torch.zeros(*ids.shape, _WIDTH)


@fault("model.architecture")
def without_a_segment_table() -> None:
    """A port leaves out the segment table, as models of the RoBERTa family do."""
    after_build(lambda model: setattr(model.bert.embeddings, "token_type_embeddings", _NoSegments()))


@fault("model.architecture", "mlm")
def decoder_bias_untied() -> None:
    """The decoder of masked language modelling has its own bias (huggingface/transformers#2521)."""

    def change(model: Any) -> None:
        decoder = model.cls.predictions.decoder
        decoder.bias = nn.Parameter(decoder.bias.detach().clone())

    after_build(change)


@fault("weights.init")
def tail_of_a_tensor_unread() -> None:
    """A download that broke off leaves the last quarter of a tensor at zero."""
    _change(lambda model: model.bert.encoder.layer[1].output.dense.weight[24:].zero_())


@fault("weights.init")
def pooler_starts_as_the_identity() -> None:
    """The pooler starts as the identity."""
    _change(lambda model: model.bert.pooler.dense.weight.copy_(torch.eye(32)))


@fault("model.architecture")
def weight_norm_left_on() -> None:
    """A recipe for distillation leaves weight normalisation on one layer."""
    after_build(lambda model: weight_norm(model.bert.encoder.layer[0].output.dense))


@fault("model.architecture")
def a_head_more() -> None:
    """A second classifier was added and is never used."""
    after_build(lambda model: model.add_module("second_head", nn.Linear(32, 2)))


@fault("weights.init")
def weights_through_fp16_in_one_layer() -> None:
    """One layer of the checkpoint was saved in half precision."""
    _change(lambda model: [value.copy_(value.half().float()) for value in model.bert.encoder.layer[1].parameters()])


@fault("model.architecture")
def bias_missing() -> None:
    """The keys have no bias."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.attention.self.key.bias = None

    after_build(change)


@fault("weights.init")
def layer_norms_start_at_half() -> None:
    """LayerNorm's scales start at one half."""
    _change(
        lambda model: [value.fill_(0.5) for name, value in model.named_parameters() if name.endswith("Norm.weight")]
    )


@fault("model.architecture")
def norms_without_shift() -> None:
    """LayerNorms have no shift."""

    def change(model: Any) -> None:
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.bias = None

    after_build(change)
