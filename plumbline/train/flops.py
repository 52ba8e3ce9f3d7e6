"""Count of a training step's floating-point operations, from the architecture."""

from __future__ import annotations

from plumbline.schema.spec import RunSpec

__all__ = ["step_flops"]


def step_flops(spec: RunSpec) -> float:
    """Return the operations of one global batch: matrix products, forward and backward."""
    model, length = spec.model, spec.data.sequence_length
    hidden, inner = model.hidden_size, model.intermediate_size
    gates = 1 if model.family == "modernbert" else 0
    projections = 4 * hidden * hidden + (2 + gates) * hidden * inner
    attention = 2 * length * hidden
    per_token = model.num_hidden_layers * (projections + attention)
    if spec.task == "masked-lm":
        per_token += hidden * hidden + hidden * model.vocab_size
        per_row = 0
    else:
        per_row = hidden * hidden + hidden * (model.num_labels or 0)
    return 6.0 * spec.batch_size * (length * per_token + per_row)
