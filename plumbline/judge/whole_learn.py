"""Completeness of a learning curve: steps, logs and evaluations. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.judge.gaps import Gap, counts, lacks
from plumbline.judge.whole_rows import missing_evaluation_rows
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import LearnSpec

_LOGGED_STEPS = 10_000
"""The trainer logs the first steps of a long curve."""


def missing_curve(record: RunRecord, learn: LearnEvidence, spec: LearnSpec) -> Iterator[Gap]:
    """Yield each missing item of a learning curve."""
    asked = min(record.experiment.steps, spec.steps) if record.experiment else spec.steps
    if learn.steps != asked or len(learn.losses) != asked:
        yield counts("learn.steps", "steps", len(learn.losses), asked)
        return
    due = [step for step in range(1, asked + 1) if step % spec.evaluate_every == 0 or step == spec.steps]
    if [evaluation.step for evaluation in learn.evaluations] != due:
        yield counts("learn.evaluations", "evaluations", len(learn.evaluations), len(due))
    if learn.weights_sha256 is None:
        yield lacks("learn.weights", "inconclusive", "digest", fact("gap.last-weights"))
    for evaluation in learn.evaluations:
        yield from missing_evaluation_rows(record, evaluation, spec, "learn")
    if not _are_finite(learn.evaluations, masked=not record.spec.has_row_labels):
        text = fact("gap.evaluations-not-finite")
        yield lacks("learn.evaluation", "invalid", "evaluation", text)
    if lost := _lost_log(learn, min(asked, _LOGGED_STEPS)):
        yield lacks("learn.log", "inconclusive", lost, fact("gap.log", what=lost), role="candidate")


def _are_finite(evaluations: tuple[EvaluationEvidence, ...], *, masked: bool) -> bool:
    """Return whether every evaluation has numbers; rows of masked tokens may hide none, and then never have any."""
    numbers = [number for each in evaluations for number in (each.loss, each.accuracy)]
    if masked and all(number is None for number in numbers):
        return True
    return all(number is not None and math.isfinite(number) for number in numbers)


def _lost_log(learn: LearnEvidence, num_steps: int) -> Statement:
    """Return the name of a missing log, or ""."""
    if len(learn.batches) != num_steps:
        return fact("gap.batch-digest")
    if len(learn.learning_rates) != num_steps:
        return fact("gap.learning-rate")
    # A curve that continued a checkpoint of an earlier release has the digests of whole batches alone.
    is_continued = learn.resumed_at and not learn.rows and not learn.labels
    if not is_continued and not len(learn.rows) == len(learn.labels) == num_steps:
        return fact("gap.rows-digest")
    if learn.start_sha256 is None:
        return fact("gap.start-digest")
    return "dropout" if learn.dropout is None else ""
