"""Rung 10: the evaluation, if all earlier evidence is the same."""

from __future__ import annotations

import math

import numpy as np

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import limit as limit_of
from plumbline.judge.tolerance import relative
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.verdict import Divergence, Finding

__all__ = ["distance", "evaluation", "evaluation_numbers"]


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
        return _break(pair, "rows evaluated", right.num_rows, left.num_rows, "a different number of rows is evaluated")
    if left.training_mode != right.training_mode:
        mode = "training" if right.training_mode else "evaluation"
        return _break(
            pair,
            "training mode",
            str(right.training_mode),
            str(left.training_mode),
            f"the evaluation runs in {mode} mode",
        )
    if left.rows_sha256 != right.rows_sha256:
        return _break(pair, "SHA-256 of the rows", right.rows_sha256, left.rows_sha256, "different rows are evaluated")
    return None


def evaluation_numbers(pair: Pair) -> Mismatch | None:
    """Return a mismatch of logits, or of numbers computed from equal logits."""
    both = _both(pair)
    if both is None:
        return None
    left, right = both
    if left.logits_sha256 != right.logits_sha256:
        gap, limit = distance(pair.reference, pair.candidate), limit_of(None, "gradient", pair.precision, left.step)
        if gap > limit:
            why = "the weights are the same, the logits of the evaluation are not"
            return _break(pair, "relative error of the logits", gap, limit, why, independent=False)
        return None
    for name in ("loss", "accuracy"):
        ours, theirs = getattr(left, name), getattr(right, name)
        limit = limit_of(None, "loss", pair.precision)
        if ours != theirs and relative(ours, theirs) > limit:
            return _break(pair, name, theirs, ours, f"the same logits give a different {name}", independent=False)
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
    why: str,
    *,
    independent: bool = True,
) -> Mismatch:
    number = observed if not isinstance(observed, float) or math.isfinite(observed) else None
    finding = Finding(
        check="probe.evaluation", outcome="drift", metric=metric, observed=number, limit=limit, detail=why
    )
    at = Divergence(stage="evaluation", at=metric)
    suspicion = Suspicion("evaluation", why, (f"{metric}: {observed} instead of the reference's {limit}",))
    return Mismatch("evaluation", at, (finding,), (suspicion,), independent=independent)
