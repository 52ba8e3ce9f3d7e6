"""Comparison of a learning curve with its reruns. Pure."""

from __future__ import annotations

from plumbline.judge.native import rounds_differently
from plumbline.judge.tolerance import limit, relative
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement


def has_equal_bits(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    """Compare two curves over the first steps; over all steps, also weights and evaluations."""
    if not _has_equal_losses(side, rerun, steps):
        return False
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or steps < learn.steps:
        return True
    ends = [(curve.weights_sha256, curve.evaluations) for curve in (learn, other)]
    return learn.weights_sha256 is not None and ends[0] == ends[1]


def has_equal_evaluations(side: LoadedRecord, rerun: LoadedRecord) -> bool:
    """Compare a whole curve with a rerun that evaluates by the definition: its sums round differently."""
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or not _has_equal_losses(side, rerun, learn.steps):
        return False
    if learn.weights_sha256 is None or learn.weights_sha256 != other.weights_sha256:
        return False
    spec = side.record.spec.learn
    most = limit(None, "loss", spec.precision if spec else "fp32")
    same = (
        (ours.step, ours.num_rows, ours.rows_sha256, ours.training_mode, ours.accuracy)
        == (theirs.step, theirs.num_rows, theirs.rows_sha256, theirs.training_mode, theirs.accuracy)
        and relative(ours.loss, theirs.loss) <= most
        for ours, theirs in zip(learn.evaluations, other.evaluations, strict=False)
    )
    return len(learn.evaluations) == len(other.evaluations) and all(same)


def was_interrupted(side: LoadedRecord, step: int | None) -> bool:
    """Return whether a training resumed before `step`; `None` is its end."""
    learn = side.record.evidence.learn
    return learn is not None and any(at <= (learn.steps if step is None else step) for at in learn.resumed_at)


def machine_changes(side: LoadedRecord, rerun: LoadedRecord) -> tuple[Statement, ...]:
    """Return what explains that the rerun rounds differently."""
    return rounds_differently(side.record, rerun.record, "learn")


def _has_equal_losses(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or len(other.losses) < steps:
        return False
    return learn.losses[:steps] == other.losses[:steps] and None not in other.losses[:steps]
