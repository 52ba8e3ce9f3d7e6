"""Rung 10 of the evidence ladder: evaluation after equal training, and what a machine's own logits give."""

from __future__ import annotations

import math

import numpy as np

from plumbline.judge.mismatches import Basis, Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import EvaluationEvidence, Recounted
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import Divergence, Finding


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
        return None if pair.rounding else _miscounted(pair)
    for name in ("loss", "accuracy"):
        ours, theirs = getattr(left, name), getattr(right, name)
        limit = limit_of("loss", pair.precision)
        if ours != theirs and relative(ours, theirs) > limit:
            return _break(pair, name, theirs, ours, fact("evaluation.number", name=name), basis="computed")
    if left.predictions_sha256 != right.predictions_sha256:
        why = fact("evaluation.predictions")
        return _break(pair, "predictions", right.predictions_sha256, left.predictions_sha256, why, basis="computed")
    return None


def miscount(found: EvaluationEvidence, recounted: Recounted) -> tuple[str, float | None, float | None] | None:
    """Return (name, number, recomputed number) where an evaluation contradicts its own logits and labels.

    Rounding changes the logits, and not what follows from them: it holds on every machine.
    """
    loss, accuracy = recounted
    # A loss changes by at most the change of its logits, and a small loss has no smaller logits.
    reach = limit_of("loss", "fp32") * max(abs(loss or 0.0), 1.0)
    numbers = (("accuracy", found.accuracy, accuracy, limits.EXACT), ("loss", found.loss, loss, reach))
    for name, number, own, limit in numbers:
        if number is not own if number is None or own is None else abs(number - own) > limit:
            return name, number, own
    return None


def _miscounted(pair: Pair) -> Mismatch | None:
    """Return a mismatch if a side's evaluation contradicts its own logits."""
    for side, probe in zip(("reference", "candidate"), pair.probes or (), strict=False):
        found, own_count = probe.evaluation, probe.recounted
        if found is not None and own_count is not None and (off := miscount(found, own_count)) is not None:
            name, number, own = off
            why = fact("learning.recounted", side=side, name=name, number=number, own=own, step=found.step)
            return _break(pair, name, number, own, why)
    if pair.reference.record.spec.has_row_labels and not all(map(_follows, (pair.reference, pair.candidate))):
        return _break(pair, "predictions", None, None, fact("evaluation.predictions"))
    return None


def _follows(loaded: LoadedRecord) -> bool:
    """Return whether each prediction is the class of the largest logit."""
    logits, predicted = loaded.evaluation.get("logits"), loaded.evaluation.get("predictions")
    if logits is None or predicted is None or logits.ndim != 2 or not logits.size:
        return True
    return bool(np.array_equal(logits.argmax(axis=1), predicted))


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
