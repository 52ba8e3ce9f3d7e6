"""Recomputation of layers in the backward pass, for trainings whose activations are too large to keep.

A layer called again computes the same bits without dropout, so that it changes memory and time, never the evidence.
"""

from __future__ import annotations

import torch
from torch import nn

from plumbline.schema.spec import RunSpec
from plumbline.train.compat.transformers import recompute_layers
from plumbline.train.ranks import Ranks

_MOST_BYTES = 12 << 30
"""Estimated size of the activations beyond which they are recomputed."""
_OF_WIDTH, _OF_SCORES = 34, 3
"""Numbers kept per token and layer: of the layer's width, and of attention's scores (counted for BERT in fp64)."""


def fit_activations(model: nn.Module, spec: RunSpec, ranks: Ranks, dtype: torch.dtype) -> bool:
    """Recompute the model's layers if the spec's activations are large; return whether they are.

    The spec alone decides, so that every machine does the same.
    """
    size, length = spec.model, spec.data.sequence_length
    tokens = spec.batch_size * length // (ranks.world * spec.optimizer.accumulation_steps)
    per_token = _OF_WIDTH * size.hidden_size + _OF_SCORES * size.num_attention_heads * length
    is_large = size.num_hidden_layers * tokens * per_token * dtype.itemsize > _MOST_BYTES
    if is_large:
        recompute_layers(model)
    return is_large
