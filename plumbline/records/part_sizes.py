"""Maximum sizes of a record's parts, from what its spec asks for. Pure."""

from __future__ import annotations

from plumbline.schema.evidence import SKETCH_SIZE
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import RunSpec

__all__ = ["MAX_ROW_BYTES", "max_part_bytes", "max_rows"]

MAX_ROW_BYTES = 64
"""Maximum bytes of one row of three integers, packed or not, in the least favourable encoding."""
_MAX_ROWS = 64_000_000
_MAX_CAPTURE_BYTES = 4 << 30
_NUMBER = 8
_STATE_BYTES = 1 << 16
"""Maximum bytes of one step's generators; those of Python, numpy and torch have 10,000."""
_OVERHEAD = 1 << 20
"""For headers, and for a faulty run that evaluates more rows than the spec asks for."""
_FOOTER = 1 << 16


def max_rows(spec: RunSpec) -> int:
    """Return the maximum number of distinct rows that a training reads."""
    steps = max((part.steps for part in (spec.probe, spec.speed, spec.learn) if part), default=0)
    return min(steps * spec.batch_size + _evaluated(spec), _MAX_ROWS)


def max_part_bytes(record: RunRecord, name: str) -> int:
    """Return the maximum size of the part `name` of this record."""
    spec = record.spec
    if name == "rows":
        return MAX_ROW_BYTES * max_rows(spec) + _FOOTER
    if name == "capture":
        return _MAX_CAPTURE_BYTES if record.experiment and record.experiment.captures else _OVERHEAD
    steps, rows = _steps(record), _evaluated(spec)
    length = max(spec.data.sequence_length, spec.model.max_position_embeddings)
    taps = len(record.evidence.probe.taps) if record.evidence.probe else 0
    sizes = {
        # Twice, as a faulty run may repeat rows: the judge names the cause.
        "batches": 2 * steps * spec.batch_size * (1 + 4 * length) * _NUMBER,
        "sketches": taps * SKETCH_SIZE * _NUMBER,
        "state": (steps + 1) * _STATE_BYTES,
        "evaluation": rows * (2 + (spec.model.num_labels or 1)) * _NUMBER,
        "answers": rows * 2 * _NUMBER,
    }
    return sizes[name] + _OVERHEAD


def _steps(record: RunRecord) -> int:
    if record.experiment:
        return record.experiment.steps - (record.experiment.trace or 0)
    return record.spec.probe.steps if record.spec.probe else 0


def _evaluated(spec: RunSpec) -> int:
    return max((part.evaluation_rows for part in (spec.probe, spec.learn) if part), default=0)
