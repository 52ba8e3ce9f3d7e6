"""Count of a training step's floating-point operations, from the architecture."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plumbline.schema.spec import RunSpec
from plumbline.train.tasks import training_task


def step_flops(spec: RunSpec) -> float:
    """Return the operations of one global batch: matrix products, forward and backward."""
    return flops_of(spec, np.full(spec.batch_size, spec.data.sequence_length))


def flops_of(spec: RunSpec, lengths: NDArray[np.int64]) -> float:
    """Return the operations of rows of these numbers of tokens, as if no row were padded."""
    model, num_tokens = spec.model, float(lengths.sum())
    hidden, inner = model.hidden_size, model.intermediate_size
    gates = 1 if model.family == "modernbert" else 0
    projections = 4 * hidden * hidden + (2 + gates) * hidden * inner
    attention = 2.0 * hidden * float(np.square(lengths).sum())
    encoder = model.num_hidden_layers * (projections * num_tokens + attention)
    head_per_token, head_per_row = training_task(spec.task).head_products(model)
    return 6.0 * (encoder + head_per_token * num_tokens + head_per_row * len(lengths))
