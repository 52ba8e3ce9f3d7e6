"""Rung 10 of the evidence ladder: evaluation after equal training.

The rounding of logits can change some numbers of an evaluation, row by row; `docs/MATH.md` derives them. In
classification a row's logits are those of its classes, and its prediction is a class. In masked language modelling a
row keeps one number, the mean log-probability of its hidden tokens, and its prediction is the number of correct tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.mismatches import Basis, Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import EvaluationEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import UNIT, relative
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.verdict import Divergence, Finding


def loss_reach(pair: Pair) -> float:
    """Return the largest loss change that the logits' difference can cause."""
    both = _rows(pair, "logits")
    if both is None:
        return math.inf
    left, right = (rows.astype(np.float64) for rows in both)
    if not len(left):
        return 0.0
    change = np.linalg.norm(right - left, axis=1)
    # A row's kept log-probability is its loss, weighted by its number of tokens; cross entropy has a slope of √2.
    return float(change.max() if _is_masked(pair) else math.sqrt(2) * change.mean())


def changed_answers(pair: Pair, limit: float) -> float | None:
    """Return the fraction of changed predictions; `None` if rounding cannot explain one.

    `limit` is the maximum relative rounding of the logits.
    """
    predicted, logits = _rows(pair, "predictions"), _rows(pair, "logits")
    if predicted is None or logits is None:
        return None
    if _is_masked(pair):
        return _changed_tokens(pair, predicted, limit)
    differing = predicted[0] != predicted[1]
    if not all(
        _may_change(rows, logits, predicted, place) for place in np.flatnonzero(differing).tolist() for rows in (0, 1)
    ):
        return None
    return float(differing.mean()) if len(differing) else 0.0


def _may_change(side: int, logits: Any, predicted: Any, place: int) -> bool:
    """Return whether the logits' difference is large enough to flip one prediction."""
    own, other = predicted[side][place], predicted[1 - side][place]
    row = logits[side][place].astype(np.float64)
    if not all(0 <= answer < len(row) for answer in (own, other)):
        return False
    difference = np.linalg.norm(row - logits[1 - side][place].astype(np.float64))
    stored = UNIT["fp32"] * float(np.abs(row).max())
    return bool(row[own] - row[other] <= math.sqrt(2) * difference + 2 * stored)


def _changed_tokens(pair: Pair, predicted: tuple[NDArray[Any], NDArray[Any]], limit: float) -> float | None:
    """Return the accuracy change from changed token predictions; `None` if too large."""
    counts = [int(side.sum()) for side in predicted]
    ends = [side.record.evidence.probe.evaluation for side in (pair.reference, pair.candidate)]  # type: ignore[union-attr]
    accuracies = [end.accuracy if end is not None else None for end in ends]
    # Correct tokens over their share: the number of hidden tokens.
    totals = [count / share for count, share in zip(counts, accuracies, strict=True) if count and share]
    changed = int(np.abs(predicted[0] - predicted[1]).sum())
    if not totals or not changed:
        return 0.0
    return changed / max(totals) if changed <= max(1.0, limits.FLIPS * limit * max(totals)) else None


def _is_masked(pair: Pair) -> bool:
    return not pair.reference.record.spec.has_row_labels


def _rows(pair: Pair, name: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return one array of both evaluations, or `None`."""
    left, right = pair.reference.evaluation.get(name), pair.candidate.evaluation.get(name)
    return (left, right) if left is not None and right is not None and left.shape == right.shape else None


def _both(pair: Pair) -> tuple[EvaluationEvidence, EvaluationEvidence] | None:
    if pair.probes is None:
        return None
    left, right = pair.probes[0].evaluation, pair.probes[1].evaluation
    return (left, right) if left is not None and right is not None else None


def evaluation(pair: Pair) -> Mismatch | None:
    """Return a mismatch of evaluated rows or mode, independent of training."""
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
    """Return a mismatch of evaluation logits, loss, predictions or accuracy."""
    both = _both(pair)
    if both is None:
        return None
    left, right = both
    if left.logits_sha256 != right.logits_sha256:
        gap, limit = distance(pair.reference, pair.candidate), limit_of("gradient", pair.precision, left.step)
        if gap > limit * max(pair.scale, 1.0) or math.isinf(gap):
            why = fact("evaluation.logits")
            return _break(pair, "relative error of the logits", gap, limit, why, basis="computed")
        # An experiment with a definition, such as the training's loss, leaves the evaluation's own function.
        return None if pair.rounding else _beyond_logits(pair, left, right)
    for name in ("loss", "accuracy"):
        ours, theirs = getattr(left, name), getattr(right, name)
        limit = limit_of("loss", pair.precision)
        if ours != theirs and relative(ours, theirs) > limit:
            return _break(pair, name, theirs, ours, fact("evaluation.number", name=name), basis="computed")
    if left.predictions_sha256 != right.predictions_sha256:
        why = fact("evaluation.predictions")
        return _break(pair, "predictions", right.predictions_sha256, left.predictions_sha256, why, basis="computed")
    return None


def _beyond_logits(pair: Pair, left: EvaluationEvidence, right: EvaluationEvidence) -> Mismatch | None:
    """Return a mismatch of loss, predictions or accuracy that logits cannot explain."""
    if left.loss is not None or right.loss is not None:
        reach = loss_reach(pair) + limit_of("loss", pair.precision) * abs(left.loss or 0.0)
        if left.loss is None or right.loss is None or abs(right.loss - left.loss) > reach:
            why = fact("evaluation.loss")
            return _break(pair, "loss", right.loss, left.loss, why, basis="computed")
    changed = changed_answers(pair, limit_of("gradient", pair.precision, left.step))
    if changed is None:
        why = fact("evaluation.clear-predictions")
        return _break(pair, "predictions", right.predictions_sha256, left.predictions_sha256, why, basis="computed")
    shares = [share for share in (left.accuracy, right.accuracy) if share is not None]
    if len(shares) == 1 or (len(shares) > 1 and abs(shares[1] - shares[0]) > changed + limits.EXACT):
        why = fact("evaluation.accuracy")
        return _break(pair, "accuracy", right.accuracy, left.accuracy, why, basis="computed")
    return None


def distance(reference: LoadedRecord, candidate: LoadedRecord) -> float:
    """Return the relative error of evaluation logits; infinite if missing."""
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
