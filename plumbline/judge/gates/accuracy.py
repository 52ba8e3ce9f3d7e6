"""Accuracy gate: compare final accuracies with the suite's margin."""

from __future__ import annotations

import math

import numpy as np

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.pair import Pair
from plumbline.judge.statistics.equivalence import McNemar, mcnemar
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Divergence, Finding, Outcome

_UNEXPLAINED = Cause(
    code="unattributed",
    sure="unattributed",
    why=fact("accuracy.outside-probe"),
)


def accuracy_gate(pair: Pair, request: GateRequest) -> GateResult:
    """Judge the final accuracy of the learning run."""
    findings = tuple(learn(pair, request.gates, request.nights.equal_accuracy))
    if not any(finding.outcome == "drift" for finding in findings):
        return GateResult(findings)
    return GateResult(
        findings, at=Divergence(stage="evaluation", part="learn", at="accuracy"), unexplained=_UNEXPLAINED
    )


def learn(pair: Pair, gates: Gates, equal: Statement = "") -> list[Finding]:
    """Return a finding on the final accuracy, if both have one.

    `equal`: why many nights show equivalence, which is stronger evidence than one pair of runs that decides nothing.
    """
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return []
    known = left.last_weights is not None  # after a failure it may be missing, and is then equal to nothing
    same = known and left.last_weights == right.last_weights and left.losses == right.losses
    if same and _same_ends(left, right):
        return [_finding("pass", 0.0, gates, fact("accuracy.equal-curves"))]
    ours, theirs = _end(left), _end(right)
    if ours is None or theirs is None or ours.accuracy is None or theirs.accuracy is None:
        return [_finding("inconclusive", None, gates, fact("accuracy.none"))]
    gap = theirs.accuracy - ours.accuracy
    detail: Statement = fact(
        "accuracy.values", accuracy=theirs.accuracy, reference=ours.accuracy, num_rows=theirs.num_rows
    )
    shared = shared_rows(pair)
    outcome = _outcome(abs(gap), accuracy_error(ours, theirs), gates)
    if shared is not None:
        detail = fact("accuracy.resolved", detail=detail, resolution=_resolution(shared, gates))
        if outcome == "drift" and shared.p_value > _two_sided(gates.accuracy_standard_errors):
            outcome = "inconclusive"
    if outcome == "inconclusive" and equal:
        outcome, detail = "pass", joined((detail, equal))
    return [_finding(outcome, gap, gates, detail)]


def shared_rows(pair: Pair) -> McNemar | None:
    """Compare both sides' predictions row by row; `None` without common rows."""
    left, right = pair.reference.answers, pair.candidate.answers
    if not left or not right or not np.array_equal(left["row_ids"], right["row_ids"]):
        return None
    return mcnemar(left["right"] == 1, right["right"] == 1)


def _resolution(shared: McNemar, gates: Gates) -> Statement:
    """Describe the smallest accuracy difference that this many rows can resolve."""
    margin = gates.accuracy_margin
    return fact(
        "accuracy.shared-rows",
        reference=shared.only_reference,
        candidate=shared.only_candidate,
        p_value=shared.p_value,
        resolvable=shared.resolvable,
        margin=margin,
        needed=shared.rows_needed(margin),
    )


def _two_sided(standard_errors: float) -> float:
    """Return the two-sided p-value of a standard normal deviate."""
    return math.erfc(standard_errors / math.sqrt(2))


def parting(pair: Pair) -> int | None:
    """Return the first step at which the learning-curve losses differ."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    pairs = zip(left.losses, right.losses, strict=False)
    return next((step for step, (ours, theirs) in enumerate(pairs) if ours != theirs), None)


def accuracy_error(left: EvaluationEvidence, right: EvaluationEvidence) -> float:
    """Return the sampling standard error of the difference between two accuracies."""
    return math.sqrt(
        sum((side.accuracy or 0) * (1 - (side.accuracy or 0)) / max(side.num_rows, 1) for side in (left, right))
    )


def _outcome(gap: float, error: float, gates: Gates) -> Outcome:
    if gap <= gates.accuracy_margin:
        return "pass"
    return "drift" if gap > gates.accuracy_margin + gates.accuracy_standard_errors * error else "inconclusive"


def _end(side: LearnEvidence) -> EvaluationEvidence | None:
    return side.evaluations[-1] if side.evaluations else None


def _same_ends(left: LearnEvidence, right: LearnEvidence) -> bool:
    ours, theirs = _end(left), _end(right)
    return ours is not None and ours.accuracy is not None and ours == theirs


def _finding(outcome: Outcome, gap: float | None, gates: Gates, detail: Statement) -> Finding:
    return Finding(
        check="learn.accuracy",
        outcome=outcome,
        metric=fact("accuracy.difference"),
        observed=gap,
        limit=gates.accuracy_margin,
        unit="absolute",
        detail=detail,
    )
