"""The learning curve where bits should be equal: any difference is drift.

The record of a curve names a cause only where it shows the difference itself: initial weights, dropout, batches,
learning rates, evaluations. Every other cause is named by a trace (`confirm_learn`).
"""

from __future__ import annotations

from plumbline.judge.gates.accuracy import parting
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["evaluating", "first_logged_difference", "learning"]


def learning(pair: Pair) -> Mismatch | None:
    """Return the mismatch of two learning curves that should be bitwise equal."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None or left.weights_sha256 is None or right.weights_sha256 is None:
        return None
    step = parting(pair)
    if step is None and (left.weights_sha256, left.evaluations) == (right.weights_sha256, right.evaluations):
        return None
    masked = pair.reference.record.spec.task == "masked-lm"
    code, why = _suspect(left, right, step, masked=masked)
    finding = Finding(
        check="learn.bits",
        outcome="drift",
        metric="first step whose loss differs, where bits should be equal",
        observed=step,
        detail="no difference in the fingerprints or the probe explains different rounding",
    )
    at = Divergence(stage="learn", step=step, at="loss" if step is not None else "weights")
    return Mismatch("learn", at, (finding,), (Suspicion(code, why),), independent=True)


def evaluating(pair: Pair) -> Mismatch | None:
    """Return the mismatch of evaluations that no difference of the training explains."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    step = parting(pair)
    for ours, theirs in zip(left.evaluations, right.evaluations, strict=False):
        why = _own_difference(ours, theirs, parting=step)
        if ours.step == theirs.step and why:
            finding = Finding(
                check="learn.evaluation",
                outcome="drift",
                metric=f"evaluation after step {ours.step}, where bits should be equal",
                detail=why,
            )
            at = Divergence(stage="evaluation", step=ours.step, at="evaluation")
            return Mismatch("evaluation", at, (finding,), (Suspicion("evaluation", why),), independent=True)
    return None


def _own_difference(ours: EvaluationEvidence, theirs: EvaluationEvidence, *, parting: int | None) -> str:
    """Return how an evaluation differs by itself, or ""."""
    if ours.training_mode != theirs.training_mode:
        return f"the evaluation runs in {'training' if theirs.training_mode else 'evaluation'} mode"
    if (ours.num_rows, ours.rows_sha256) != (theirs.num_rows, theirs.rows_sha256):
        return "different rows are evaluated"
    # The loss of the step after an evaluation has the weights of the evaluation.
    if ours != theirs and parting is not None and ours.step < parting:
        return f"the evaluation after step {ours.step} differs, the loss of the next step is equal"
    return ""


def first_logged_difference(left: LearnEvidence, right: LearnEvidence) -> int | None:
    """Return the first step whose batch, learning rate or loss differs."""
    logs = ((left.batches, right.batches), (left.learning_rates, right.learning_rates), (left.losses, right.losses))
    places = [place for ours, theirs in logs if (place := _first(ours, theirs)) is not None]
    return min(places, default=None)


def _suspect(left: LearnEvidence, right: LearnEvidence, step: int | None, *, masked: bool) -> tuple[CauseCode, str]:
    """Return the first of dropout, weights, batches and learning rates that differs, as cause."""
    last = len(left.losses) if step is None else step + 1
    if None not in (left.dropout, right.dropout) and left.dropout != right.dropout:
        return "rng", f"dropout is {_listed(right.dropout)} instead of {_listed(left.dropout)}"
    if None not in (left.start_sha256, right.start_sha256) and left.start_sha256 != right.start_sha256:
        return "weights.init", "the learning curve starts from different weights, the probe does not"
    place = _first(left.batches[:last], right.batches[:last])
    if place is not None:
        return _batch(left, right, place, masked=masked)
    place = _first(left.learning_rates[:last], right.learning_rates[:last])
    if place is not None:
        ours, theirs = left.learning_rates[place], right.learning_rates[place]
        resumed = f", at a resume at step {right.resumed_at[-1]}" if place in right.resumed_at else ""
        return "schedule", f"step {place} was taken with a learning rate of {theirs} instead of {ours}{resumed}"
    return _by_place(left, right, step)


def _batch(left: LearnEvidence, right: LearnEvidence, place: int, *, masked: bool) -> tuple[CauseCode, str]:
    """Return the cause of a step's different batch, from the digests of its rows and labels."""
    logs = (left.rows, right.rows, left.labels, right.labels)
    if any(len(log) <= place for log in logs):
        return "data.order", f"step {place} of the learning curve received different rows or ids"
    if left.rows[place] != right.rows[place]:
        return "data.order", f"step {place} of the learning curve received different rows"
    if masked:
        return "unattributed", f"step {place} of the learning curve received the same rows with different ids or masks"
    if left.labels[place] != right.labels[place]:
        return "data.labels", f"step {place} of the learning curve received the same rows with different labels"
    return "tokenization", f"step {place} of the learning curve received the same rows as different ids"


def _by_place(left: LearnEvidence, right: LearnEvidence, step: int | None) -> tuple[CauseCode, str]:
    """Return a cause from the step at which the curves separate, or `unattributed`."""
    if step is None:
        same = left.weights_sha256 == right.weights_sha256
        return (
            ("evaluation", "all losses and the final weights are equal, the evaluations are not")
            if same
            else ("unattributed", "all losses are equal, the final weights are not")
        )
    restarts = [at for at in (*left.resumed_at, *right.resumed_at) if at <= step]
    if restarts:
        why = f"the curves separate at step {step}, after a resume at step {restarts[-1]}: a restored state differs"
        return "optimizer", why
    why = f"the curves separate at step {step}, with equal batches and learning rates: an experiment's trace names more"
    return "unattributed", why


def _first(left: tuple[object, ...], right: tuple[object, ...]) -> int | None:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), None)


def _listed(values: tuple[float, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else "0"
