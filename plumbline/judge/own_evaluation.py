"""A run's own evaluation against the evaluation by its definition, at the same weights.

A first cause changes the weights, and so hides a fault of the evaluation behind it. The candidate trains once more,
unchanged, and evaluates by the definition: its weights are its rerun's to the bit, so that only the evaluation can
differ. The reference does the same as the control: a deviation that it shows too is no fault of the candidate.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from plumbline.judge.rungs.evaluation import distance
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import Cause, CauseCode

_LEAVE_ROWS_AND_MODES: frozenset[CauseCode] = frozenset(
    {
        "model.architecture",
        "weights.init",
        "precision",
        "operator",
        "kernel",
        "loss",
        "gradient",
        "optimizer",
        "schedule",
    }
)
"""Causes that change neither the rows and tokens of the evaluation nor draw random numbers in it."""
_LEAVE_LOSS: frozenset[CauseCode] = frozenset(
    {"model.architecture", "weights.init", "operator", "gradient", "optimizer", "schedule"}
)
"""Causes that leave the function of the evaluation's loss."""


@dataclass(frozen=True, slots=True)
class OwnEvaluation:
    """State of the test: the candidate's run first, then, if that deviates, the reference's."""

    is_closed: bool = False
    found: Statement = ""
    """How the candidate's evaluation deviates from the definition."""

    def after_candidate(self, found: Statement | None) -> OwnEvaluation:
        """Close the test without a deviation; otherwise ask for the control."""
        return replace(self, is_closed=not found, found=found or "")

    def cause(self) -> Cause:
        """Return the cause of a deviation that the reference does not show."""
        evidence = (
            fact("own-evaluation.deviates", found=self.found),
            fact("own-evaluation.reference-agrees"),
        )
        tried = (fact("own-evaluation.experiment"),)
        why = fact("own-evaluation.differs")
        return Cause(code="evaluation", sure="confirmed", why=why, evidence=evidence, tried=tried)


def may_hide(reference: LoadedRecord, candidate: LoadedRecord, codes: Collection[CauseCode]) -> bool:
    """Return whether causes with these codes explain a different evaluation, and so may hide a fault in it."""
    ours, theirs = _evaluation(reference), _evaluation(candidate)
    if ours is None or theirs is None or ours == theirs or not codes:
        return False
    return all(code in _LEAVE_ROWS_AND_MODES for code in codes)


def deviation(own: LoadedRecord, defined: LoadedRecord, codes: Collection[CauseCode]) -> Statement | None:
    """Return how an evaluation deviates from the same run's evaluation by the definition.

    Return `""` without a deviation beyond rounding, and `None` if the two runs have different weights. The loss is
    compared only if no cause in `codes` changes its function.
    """
    ours, theirs = _evaluation(own), _evaluation(defined)
    if ours is None or theirs is None or _weights(own) != _weights(defined):
        return None
    precision: Precision = own.record.spec.probe.precision if own.record.spec.probe else "fp32"
    if ours.rows_sha256 != theirs.rows_sha256:
        return fact("own-evaluation.rows")
    if ours.logits_sha256 != theirs.logits_sha256:
        gap = distance(defined, own)
        return fact("own-evaluation.logits", gap=gap) if gap > limit_of(None, "gradient", precision) else ""
    if ours.predictions_sha256 != theirs.predictions_sha256 or ours.accuracy != theirs.accuracy:
        return fact("own-evaluation.predictions")
    off = relative(theirs.loss, ours.loss)
    if all(code in _LEAVE_LOSS for code in codes) and off > limit_of(None, "loss", precision):
        return fact("own-evaluation.loss", off=off) if math.isfinite(off) else fact("own-evaluation.loss-not-finite")
    return ""


def _evaluation(record: LoadedRecord) -> EvaluationEvidence | None:
    return record.record.evidence.probe.evaluation if record.record.evidence.probe else None


def _weights(record: LoadedRecord) -> str | None:
    probe = record.record.evidence.probe
    return probe.steps[-1].weights_sha256 if probe and probe.steps else None
