"""The learning curve where bits should be equal: any difference is drift."""

from __future__ import annotations

from plumbline.judge.gates.accuracy import parting
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["learning"]


def learning(pair: Pair) -> Mismatch | None:
    """Return the mismatch of two learning curves that should be bitwise equal."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None or left.weights_sha256 is None or right.weights_sha256 is None:
        return None
    step = parting(pair)
    if step is None and (left.weights_sha256, left.evaluations) == (right.weights_sha256, right.evaluations):
        return None
    code, why = _suspect(left, right, step)
    finding = Finding(
        check="learn.bits",
        outcome="drift",
        metric="first step whose loss differs, where bits should be equal",
        observed=step,
        detail="no difference in the fingerprints or the probe explains different rounding",
    )
    at = Divergence(stage="learn", step=step, at="loss" if step is not None else "weights")
    return Mismatch("learn", at, (finding,), (Suspicion(code, why),), independent=True)


def _suspect(left: LearnEvidence, right: LearnEvidence, step: int | None) -> tuple[CauseCode, str]:
    """Return the first of batches, dropout and learning rates that differs, as cause."""
    last = len(left.losses) if step is None else step + 1
    if None not in (left.dropout, right.dropout) and left.dropout != right.dropout:
        return "rng", f"dropout is {_listed(right.dropout)} instead of {_listed(left.dropout)}"
    place = _first(left.batches[:last], right.batches[:last])
    if place is not None:
        return "data.order", f"step {place} of the learning curve received different rows or ids"
    place = _first(left.learning_rates[:last], right.learning_rates[:last])
    if place is not None:
        ours, theirs = left.learning_rates[place], right.learning_rates[place]
        resumed = f", at a resume at step {right.resumed_at[-1]}" if place in right.resumed_at else ""
        return "schedule", f"step {place} was taken with a learning rate of {theirs} instead of {ours}{resumed}"
    return _by_place(left, right, step)


def _by_place(left: LearnEvidence, right: LearnEvidence, step: int | None) -> tuple[CauseCode, str]:
    """Return the likeliest cause from the step at which the curves separate."""
    if step is None:
        same = left.weights_sha256 == right.weights_sha256
        return (
            ("evaluation", "all losses and the final weights are equal, the evaluations are not")
            if same
            else ("optimizer", "all losses are equal, the final weights are not")
        )
    if step == 0:
        return "rng", "the first loss differs, though the probe's forward pass is equal: only dropout's draws remain"
    restarts = [at for at in (*left.resumed_at, *right.resumed_at) if at <= step]
    if restarts:
        why = f"the curves separate at step {step}, after a resume at step {restarts[-1]}: a restored state differs"
        return "optimizer", why
    return "unattributed", f"the curves separate at step {step}, with equal batches and learning rates"


def _first(left: tuple[object, ...], right: tuple[object, ...]) -> int | None:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), None)


def _listed(values: tuple[float, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else "0"
