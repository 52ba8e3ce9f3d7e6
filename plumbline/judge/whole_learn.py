"""Completeness of a learning curve: steps, logs and evaluations. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.judge.lacking import counts, lacks
from plumbline.judge.whole_rows import missing_evaluation_rows
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import LearnSpec
from plumbline.schema.verdict import Finding

__all__ = ["missing_curve"]

_LOGGED_STEPS = 10_000
"""The trainer logs the first steps of a long curve."""


def missing_curve(record: RunRecord, learn: LearnEvidence, spec: LearnSpec, side: str) -> Iterator[Finding]:
    """Yield a finding for each missing item of a learning curve."""
    asked = min(record.experiment.steps, spec.steps) if record.experiment else spec.steps
    if learn.steps != asked or len(learn.losses) != asked:
        yield counts("learn.steps", "steps", len(learn.losses), asked, side)
        return
    due = [step for step in range(1, asked + 1) if step % spec.evaluate_every == 0 or step == spec.steps]
    if [evaluation.step for evaluation in learn.evaluations] != due:
        yield counts("learn.evaluations", "evaluations", len(learn.evaluations), len(due), side)
    if learn.weights_sha256 is None:
        yield lacks("learn.weights", "inconclusive", "digest", f"the {side} has no digest of its last weights")
    for evaluation in learn.evaluations if side == "reference" else ():
        yield from missing_evaluation_rows(record, evaluation, spec, "learn", side)
    if not _are_finite(learn.evaluations, masked=record.spec.task == "masked-lm"):
        detail = f"a loss or an accuracy of the {side}'s evaluations is no finite number"
        yield lacks("learn.evaluation", "invalid", "evaluation", detail)
    if side != "reference" and (lost := _lost_log(learn, min(asked, _LOGGED_STEPS))):
        yield lacks("learn.log", "inconclusive", lost, f"the {side} has no {lost} of each step of its curve")


def _are_finite(evaluations: tuple[EvaluationEvidence, ...], *, masked: bool) -> bool:
    """Return whether every evaluation has numbers; rows of masked tokens may hide none, and then never have any."""
    numbers = [number for each in evaluations for number in (each.loss, each.accuracy)]
    if masked and all(number is None for number in numbers):
        return True
    return all(number is not None and math.isfinite(number) for number in numbers)


def _lost_log(learn: LearnEvidence, num_steps: int) -> str:
    """Return the name of a missing log, or ""."""
    if len(learn.batches) != num_steps:
        return "digest of the batch"
    if len(learn.learning_rates) != num_steps:
        return "learning rate"
    # A curve that continued a checkpoint of an earlier release has the digests of whole batches alone.
    is_continued = learn.resumed_at and not learn.rows and not learn.labels
    if not is_continued and not len(learn.rows) == len(learn.labels) == num_steps:
        return "digest of the rows and labels"
    if learn.start_sha256 is None:
        return "digest of the weights at the start"
    return "dropout" if learn.dropout is None else ""
