"""Rung of evaluations: those of the probe and of a curve, and their recount from the same logits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from plumbline.judge.mismatches import Basis, Mismatch, Suspicion, by_itself, differs
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import EvaluationEvidence, Recounted
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.tolerance import loss_gap, relative
from plumbline.schema.verdict import CauseCode, Divergence

Part = Literal["probe", "learn"]
Number = float | str | None


def _both(pair: Pair) -> tuple[EvaluationEvidence, EvaluationEvidence] | None:
    if pair.probes is None:
        return None
    left, right = pair.probes[0].evaluation, pair.probes[1].evaluation
    return (left, right) if left is not None and right is not None else None


def evaluation(pair: Pair) -> Mismatch | None:
    """Return a mismatch of the probe's evaluated rows or mode, independent of training."""
    both = _both(pair)
    return _given(*both, "probe") if both is not None else None


def _given(ours: EvaluationEvidence, theirs: EvaluationEvidence, part: Part) -> Mismatch | None:
    """Return a mismatch of what an evaluation was given: rows and mode."""
    mode = "training" if theirs.training_mode else "evaluation"
    for metric, name, why in (
        ("rows evaluated", "num_rows", fact("evaluation.num-rows")),
        ("training mode", "training_mode", fact("evaluation.mode", mode=mode)),
        ("SHA-256 of the rows", "rows_sha256", fact("evaluation.rows")),
    ):
        left, right = getattr(ours, name), getattr(theirs, name)
        if left != right:
            left, right = (str(value) if isinstance(value, bool) else value for value in (left, right))
            return _mismatch((part, ours.step, metric), right, left, why)
    return None


def curve_evaluation(pair: Pair, parting: float) -> Mismatch | None:
    """Return the first evaluation of a curve that differs independently of its training.

    `parting` is the number of steps that owe equal bits: the loss of the step after an evaluation has its weights.
    """
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    fed = zip(left.evaluations, right.evaluations, left.evaluated, right.evaluated, strict=False)
    for ours, theirs, known, other in fed:
        if ours.rows_sha256 != theirs.rows_sha256 or known == other:
            continue
        if known[1] != other[1]:  # of other hidden tokens, the labels are others, too
            return _mismatch(("learn", ours.step, "inputs"), other[1], known[1], fact("evaluation.inputs"))
        why = fact("evaluation.labels")
        return _mismatch(("learn", ours.step, "labels"), other[0], known[0], why, code="data.labels")
    for ours, theirs in zip(left.evaluations, right.evaluations, strict=False):
        if ours.step != theirs.step:
            continue
        if (given := _given(ours, theirs, "learn")) is not None:
            return given
        if ours != theirs and ours.step < parting:
            why = fact("evaluation.alone", step=ours.step)
            return _mismatch(("learn", ours.step, "evaluation"), theirs.logits_sha256, ours.logits_sha256, why)
    return None


def own_mode(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return an evaluation that ran in training mode."""
    probe, learn = loaded.record.evidence.probe, loaded.record.evidence.learn
    of_probe = (probe.evaluation,) if probe is not None else ()
    for each in of_probe if part == "probe" else (learn.evaluations if learn is not None else ()):
        if each is not None and each.training_mode:
            why, step = fact("evaluation.mode", mode="training"), each.step if part == "learn" else None
            return by_itself("evaluation", "evaluation", step, "training mode", why)
    return None


def evaluation_numbers(pair: Pair) -> Mismatch | None:
    """Return a mismatch of the probe's evaluation logits, loss, predictions or accuracy."""
    both = _both(pair)
    if both is None:
        return None
    left, right = both
    if left.logits_sha256 != right.logits_sha256:
        gap, limit = distance(pair.reference, pair.candidate), limit_of("gradient", pair.precision, left.step)
        if gap > limit * max(pair.scale, 1.0) or math.isinf(gap):
            why = fact("evaluation.logits")
            return _mismatch(("probe", left.step, "relative error of the logits"), gap, limit, why, basis="computed")
        # An experiment with a definition, such as the training's loss, leaves the evaluation's own function.
        return None if pair.rounding else miscounted(pair, "probe")
    for name in ("loss", "accuracy"):
        ours, theirs = getattr(left, name), getattr(right, name)
        if ours != theirs and relative(ours, theirs) > limit_of("loss", pair.precision):
            why = fact("evaluation.number", name=name)
            return _mismatch(("probe", left.step, name), theirs, ours, why, basis="computed")
    ours, theirs = left.predictions_sha256, right.predictions_sha256
    if ours == theirs:
        return None
    return _mismatch(
        ("probe", left.step, "predictions"), theirs, ours, fact("evaluation.predictions"), basis="computed"
    )


def miscounted(pair: Pair, part: Part, *, loss: bool = True) -> Mismatch | None:
    """Return an evaluation that contradicts its own logits and labels, on either side.

    `loss`: compare the loss, too, which a different loss function of the training changes.
    """
    for side, record in pair.sides:
        for step, name, number, own in _miscounts(record, part):
            if loss or name != "loss":
                why = fact("evaluation.recounted", side=side, name=name, number=number, own=own, step=step)
                return _mismatch((part, step, name), number, own, why)
    return None


def _miscounts(record: LoadedRecord, part: Part) -> Iterator[tuple[int, str, float | None, float | None]]:
    """Yield (step, number's name, number, recomputed number) of an evaluation that contradicts its logits."""
    probe, curve = record.record.evidence.probe, record.record.evidence.learn
    counted: list[tuple[EvaluationEvidence, Recounted]] = []
    if part == "learn" and curve is not None:
        counted = list(zip(curve.evaluations, curve.recounted, strict=False))
    elif part == "probe" and probe is not None and probe.evaluation is not None and probe.recounted is not None:
        counted = [(probe.evaluation, probe.recounted)]
    yield from ((found.step, *off) for found, own in counted if (off := miscount(found, own)) is not None)
    if part == "probe":
        if counted and record.record.spec.has_row_labels and not _follows(record):
            yield counted[0][0].step, "predictions", None, None
    elif curve is not None and curve.evaluations and (right := record.answers.get("right")) is not None and right.size:
        last, share = curve.evaluations[-1], float(right.sum()) / right.size
        if last.accuracy is None or abs(last.accuracy - share) > limits.EXACT:
            yield last.step, "accuracy", last.accuracy, share


def miscount(found: EvaluationEvidence, recounted: Recounted) -> tuple[str, float | None, float | None] | None:
    """Return (name, number, recomputed number) where an evaluation contradicts its own logits and labels.

    Rounding changes the logits, and not what follows from them: it holds on every machine.
    """
    loss, accuracy = recounted
    if found.accuracy != accuracy and relative(accuracy, found.accuracy) > limits.EXACT:
        return "accuracy", found.accuracy, accuracy
    is_off = found.loss != loss and loss_gap(loss, found.loss) > limit_of("loss", "fp32")
    return ("loss", found.loss, loss) if is_off else None


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


def _mismatch(
    place: tuple[Part, int, str], observed: Number, limit: Number, why: Statement, *, basis: Basis = "given",
    code: CauseCode = "evaluation",
) -> Mismatch:  # fmt: skip
    part, step, metric = place
    at = Divergence(stage="evaluation", step=step if part == "learn" else None, at=metric)
    evidence = (fact("evaluation.instead", metric=metric, observed=observed, limit=limit),)
    numbers = {"observed": observed, "limit": limit, "detail": why}
    return differs(at, f"{part}.evaluation", metric, Suspicion(code, why, evidence), basis=basis, **numbers)
