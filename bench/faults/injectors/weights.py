"""Faults of initial weights and of the model's architecture."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import after_build
from bench.faults.injectors.patching import by

_WIDTH = 32


@fault("weights.init")
def normal_truncated():
    """Initial values come from a truncated normal distribution (pytorch/torchtitan#4104)."""
    after_build(lambda model: [value.clamp_(-0.04, 0.04) for value in model.parameters() if value.dim() > 1])


class _NoSegments(nn.Module):
    """Segment table without parameters, which adds nothing."""

    def forward(self, ids):
        """Return zeros for each token."""
        return torch.zeros(*ids.shape, _WIDTH)


@fault("model.architecture")
def without_a_segment_table():
    """A port leaves out the segment table, as models of the RoBERTa family do."""
    after_build(lambda model: setattr(model.bert.embeddings, "token_type_embeddings", _NoSegments()))


@fault("model.architecture", "mlm")
@by(after_build)
def decoder_bias_untied(model):
    """The decoder of masked language modelling has its own bias (huggingface/transformers#2521)."""
    decoder = model.cls.predictions.decoder
    decoder.bias = nn.Parameter(decoder.bias.detach().clone())


@fault("weights.init")
def tail_of_a_tensor_unread():
    """A download that broke off leaves the last quarter of a tensor at zero."""
    after_build(lambda model: model.bert.encoder.layer[1].output.dense.weight[24:].zero_())


@fault("weights.init")
def pooler_starts_as_the_identity():
    """The pooler starts as the identity."""
    after_build(lambda model: model.bert.pooler.dense.weight.copy_(torch.eye(_WIDTH)))


@fault("model.architecture")
def weight_norm_left_on():
    """A recipe for distillation leaves weight normalisation on one layer."""
    after_build(lambda model: weight_norm(model.bert.encoder.layer[0].output.dense))


@fault("model.architecture")
def a_head_more():
    """A second classifier was added and is never used."""
    after_build(lambda model: model.add_module("second_head", nn.Linear(_WIDTH, 2)))


@fault("weights.init")
@by(after_build)
def weights_through_fp16_in_one_layer(model):
    """One layer of the checkpoint was saved in half precision."""
    for value in model.bert.encoder.layer[1].parameters():
        value.copy_(value.half().float())


@fault("model.architecture")
@by(after_build)
def bias_missing(model):
    """The keys have no bias."""
    for layer in model.bert.encoder.layer:
        layer.attention.self.key.bias = None


@fault("weights.init")
@by(after_build)
def layer_norms_start_at_half(model):
    """LayerNorm's scales start at one half."""
    for name, value in model.named_parameters():
        if name.endswith("Norm.weight"):
            value.fill_(0.5)


@fault("model.architecture")
@by(after_build)
def norms_without_shift(model):
    """LayerNorms have no shift."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.bias = None
