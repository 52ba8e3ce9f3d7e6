"""Count of a training step's floating-point operations, from the architecture."""

from __future__ import annotations

from plumbline.schema.spec import RunSpec
from plumbline.train.tasks import training_task

__all__ = ["step_flops"]


def step_flops(spec: RunSpec) -> float:
    """Return the operations of one global batch: matrix products, forward and backward."""
    model, length = spec.model, spec.data.sequence_length
    hidden, inner = model.hidden_size, model.intermediate_size
    gates = 1 if model.family == "modernbert" else 0
    projections = 4 * hidden * hidden + (2 + gates) * hidden * inner
    attention = 2 * length * hidden
    per_token = model.num_hidden_layers * (projections + attention)
    head_per_token, head_per_row = training_task(spec.task).head_products(model)
    return 6.0 * spec.batch_size * (length * (per_token + head_per_token) + head_per_row)
