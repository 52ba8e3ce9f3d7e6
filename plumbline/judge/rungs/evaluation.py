"""Rung 10: the evaluation, if all earlier evidence is the same."""

from __future__ import annotations

import math

import numpy as np

from plumbline import limits
from plumbline.judge.evaluated_rows import changed_answers, loss_reach
from plumbline.judge.mismatches import Basis, Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import limit as limit_of
from plumbline.judge.tolerance import relative
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Divergence, Finding


def _both(pair: Pair) -> tuple[EvaluationEvidence, EvaluationEvidence] | None:
    if pair.probes is None:
        return None
    left, right = pair.probes[0].evaluation, pair.probes[1].evaluation
    return (left, right) if left is not None and right is not None else None


def evaluation(pair: Pair) -> Mismatch | None:
    """Return a mismatch of evaluated rows or mode, which no training can cause."""
    both = _both(pair)
    if both is None:
        return None
    left, right = both
    if left.num_rows != right.num_rows:
        return _break(
            pair,
            "rows evaluated",
            right.num_rows,
            left.num_rows,
            fact("evaluation.num-rows"),
        )
    if left.training_mode != right.training_mode:
        mode = "training" if right.training_mode else "evaluation"
        return _break(
            pair,
            "training mode",
            str(right.training_mode),
            str(left.training_mode),
            fact("evaluation.mode", mode=mode),
        )
    if left.rows_sha256 != right.rows_sha256:
        return _break(
            pair,
            "SHA-256 of the rows",
            right.rows_sha256,
            left.rows_sha256,
            fact("evaluation.rows"),
        )
    return None


def evaluation_numbers(pair: Pair) -> Mismatch | None:
    """Return a mismatch of logits, or of numbers that differ by more than their logits explain."""
    both = _both(pair)
    if both is None:
        return None
    left, right = both
    if left.logits_sha256 != right.logits_sha256:
        gap, limit = distance(pair.reference, pair.candidate), limit_of(None, "gradient", pair.precision, left.step)
        if gap > limit:
            why = fact("evaluation.logits")
            return _break(pair, "relative error of the logits", gap, limit, why, basis="computed")
        # An experiment with a definition, such as the training's loss, leaves the evaluation's own function.
        return None if pair.rounding else _beyond_logits(pair, left, right)
    for name in ("loss", "accuracy"):
        ours, theirs = getattr(left, name), getattr(right, name)
        limit = limit_of(None, "loss", pair.precision)
        if ours != theirs and relative(ours, theirs) > limit:
            return _break(pair, name, theirs, ours, fact("evaluation.number", name=name), basis="computed")
    if left.predictions_sha256 != right.predictions_sha256:
        why = fact("evaluation.predictions")
        return _break(pair, "predictions", right.predictions_sha256, left.predictions_sha256, why, basis="computed")
    return None


def _beyond_logits(pair: Pair, left: EvaluationEvidence, right: EvaluationEvidence) -> Mismatch | None:
    """Return a mismatch of numbers that differ by more than the rounding of their logits allows."""
    if left.loss is not None or right.loss is not None:
        reach = loss_reach(pair) + limit_of(None, "loss", pair.precision) * abs(left.loss or 0.0)
        if left.loss is None or right.loss is None or abs(right.loss - left.loss) > reach:
            why = fact("evaluation.loss")
            return _break(pair, "loss", right.loss, left.loss, why, basis="computed")
    changed = changed_answers(pair, limit_of(None, "gradient", pair.precision, left.step))
    if changed is None:
        why = fact("evaluation.clear-predictions")
        return _break(pair, "predictions", right.predictions_sha256, left.predictions_sha256, why, basis="computed")
    shares = [share for share in (left.accuracy, right.accuracy) if share is not None]
    if len(shares) == 1 or (len(shares) > 1 and abs(shares[1] - shares[0]) > changed + limits.EXACT):
        why = fact("evaluation.accuracy")
        return _break(pair, "accuracy", right.accuracy, left.accuracy, why, basis="computed")
    return None


def distance(reference: LoadedRecord, candidate: LoadedRecord) -> float:
    """Return the relative error of the evaluation's logits; infinite if a record has none."""
    left, right = reference.evaluation.get("logits"), candidate.evaluation.get("logits")
    if left is None or right is None or left.shape != right.shape:
        return math.inf
    gap = float(np.linalg.norm(left.astype(np.float64) - right.astype(np.float64)))
    size = float(np.linalg.norm(left.astype(np.float64)))
    return gap / size if size and math.isfinite(gap) else math.inf


def _break(
    _pair: Pair,
    metric: str,
    observed: float | str | None,
    limit: float | str | None,
    why: Statement,
    *,
    basis: Basis = "given",
) -> Mismatch:
    number = observed if not isinstance(observed, float) or math.isfinite(observed) else None
    finding = Finding(
        check="probe.evaluation", outcome="drift", metric=metric, observed=number, limit=limit, detail=why
    )
    at = Divergence(stage="evaluation", at=metric)
    suspicion = Suspicion(
        "evaluation", why, (fact("evaluation.instead", metric=metric, observed=observed, limit=limit),)
    )
    return Mismatch("evaluation", at, (finding,), (suspicion,), basis=basis)
