"""Comparison of learning-curve reruns, and choice of the steps to trace. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.judge.native import rounds_differently
from plumbline.judge.rungs.learning import first_logged_difference
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import limit, relative


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
    """Compare a learning curve with its rerun, whose evaluations round differently."""
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or not _has_equal_losses(side, rerun, learn.steps):
        return False
    if learn.weights_sha256 is None or learn.weights_sha256 != other.weights_sha256:
        return False
    spec = side.record.spec.learn
    most = limit("loss", spec.precision if spec else "fp32")
    same = (
        (ours.step, ours.num_rows, ours.rows_sha256, ours.training_mode, ours.accuracy)
        == (theirs.step, theirs.num_rows, theirs.rows_sha256, theirs.training_mode, theirs.accuracy)
        and relative(ours.loss, theirs.loss) <= most
        for ours, theirs in zip(learn.evaluations, other.evaluations, strict=False)
    )
    return len(learn.evaluations) == len(other.evaluations) and all(same)


def was_interrupted(side: LoadedRecord, step: int | None) -> bool:
    """Return whether a training resumed before `step`; `None` means its end."""
    learn = side.record.evidence.learn
    return learn is not None and any(at <= (learn.steps if step is None else step) for at in learn.resumed_at)


def machine_changes(side: LoadedRecord, rerun: LoadedRecord) -> tuple[Statement, ...]:
    """Return the machine's changes that explain the rerun's different rounding."""
    return rounds_differently(side.record, rerun.record, "learn")


def _has_equal_losses(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or len(other.losses) < steps:
        return False
    return learn.losses[:steps] == other.losses[:steps] and None not in other.losses[:steps]


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of the curve from `first` to before `until`."""

    first: int
    until: int


def _window(first: int, steps: int) -> Window:
    """Return the steps just before, at and after a difference."""
    return Window(first, min(first + 2 + limits.STEPS_AFTER, steps))


def first_window(reference: LearnEvidence, candidate: LearnEvidence) -> Window:
    """Return the steps around the first difference that the records of two curves show.

    The update of the step before is included: its gradients or its weights may differ, and its loss not. Without any
    difference of the losses, the last steps.
    """
    place = first_logged_difference(reference, candidate)
    steps = reference.steps
    return _window(max((steps if place is None else place) - 1, 0), steps)


def earlier_window(window: Window, reference: LoadedRecord, candidate: LoadedRecord) -> Window | None:
    """Return the steps around the first weights that differ, if they differ before `window`.

    Losses in fp32 can agree for some steps after the weights have separated.
    """
    left, right = reference.record.evidence.trace, candidate.record.evidence.trace
    if left is None or right is None or window.first == 0:
        return None
    pairs = enumerate(zip(left.weights, right.weights, strict=False))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    if place is None or place > window.first:
        return None
    return _window(max(place - 1, 0), window.until)


def trace_problem(record: LoadedRecord, window: Window) -> Statement:
    """Return why a record is not a complete trace of `window`, or ""."""
    experiment, evidence = record.record.experiment, record.record.evidence
    if experiment is None or evidence.trace is None or evidence.probe is None:
        return fact("trace.none")
    if (experiment.trace, experiment.steps, evidence.trace.first) != (window.first, window.until, window.first):
        return fact("trace.steps", first=window.first, until=window.until)
    if len(evidence.trace.weights) <= window.first:
        return fact("trace.checksums")
    return next((finding.detail for finding in missing_evidence(record, "trace")), "")
