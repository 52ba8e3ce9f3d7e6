"""The learning curve where bits should be equal: any difference is drift.

The record of a curve names a cause only where it shows the difference itself: initial weights, dropout, batches,
learning rates, evaluations. Every other cause is named by a trace (`confirm_learn`).
"""

from __future__ import annotations

from plumbline.judge.gates.accuracy import parting
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import limit as limit_of
from plumbline.judge.tolerance import relative
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.verdict import CauseCode, Divergence, Finding

__all__ = ["evaluating", "first_logged_difference", "learning", "logged"]

_SAME_RATE = 1e-12
_HIGHEST = 100.0
"""Maximum of a loss in units of the largest loss of the reference's curve, also where rounding has separated them."""


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


def logged(pair: Pair) -> Mismatch | None:
    """Return the mismatch of what two curves log exactly, whatever their rounding.

    These are dropout, start weights, batches, learning rates, and the rows and mode of each evaluation. Beside them
    stands the first loss, whose weights and batch are equal: later losses separate by rounding alone.
    """
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    masked = pair.reference.record.spec.task == "masked-lm"
    found = _exact_suspect(left, right, len(left.losses), masked=masked, precision=_SAME_RATE)
    if found is None and (evaluated := _evaluated_apart(left, right)) is not None:
        return evaluated
    place, code, why = found or _first_loss(pair, left, right) or (None, None, "")
    if code is None:
        return None
    finding = Finding(
        check="learn.exact", outcome="drift", metric="first step that differs by more than rounding", observed=place,
        detail=why,
    )  # fmt: skip
    at = Divergence(stage="learn", step=place, at=_PLACES.get(code, "loss"))
    return Mismatch("learn", at, (finding,), (Suspicion(code, why),), independent=True)


_PLACES: dict[CauseCode, str] = {"rng": "dropout", "weights.init": "weights", "schedule": "learning_rate"}


def _first_loss(pair: Pair, left: LearnEvidence, right: LearnEvidence) -> tuple[int, CauseCode, str] | None:
    """Return the first loss of equal weights and an equal batch, or any loss, that no rounding explains."""
    if not left.losses or not right.losses or None in left.losses or None in right.losses:
        return None
    spec = pair.reference.record.spec.learn
    ours, theirs = float(left.losses[0] or 0.0), float(right.losses[0] or 0.0)
    # A loss changes by at most the change of its logits, and so by their limit; a small loss has no smaller logits.
    if abs(theirs - ours) > limit_of(None, "gradient", spec.precision if spec else "fp32") * max(abs(ours), 1.0):
        return 0, "unattributed", f"the first loss is {theirs:.6g} instead of {ours:.6g}, from equal weights and rows"
    most = _HIGHEST * max(abs(loss) for loss in left.losses if loss is not None)
    place = next((step for step, loss in enumerate(right.losses) if loss is not None and abs(loss) > most), None)
    if place is None:
        return None
    return place, "unattributed", f"the loss of step {place} is {right.losses[place]:.3g}, more than {most:.3g}"


def _evaluated_apart(left: LearnEvidence, right: LearnEvidence) -> Mismatch | None:
    """Return the mismatch of the first evaluation of different rows, or in a different mode."""
    for ours, theirs in zip(left.evaluations, right.evaluations, strict=False):
        why = _own_difference(ours, theirs, parting=None)
        if ours.step == theirs.step and why:
            return _of_evaluation(ours.step, why, "whatever the rounding")
    return None


def _of_evaluation(step: int, why: str, where: str) -> Mismatch:
    metric = f"evaluation after step {step}, {where}"
    finding = Finding(check="learn.evaluation", outcome="drift", metric=metric, detail=why)
    at = Divergence(stage="evaluation", step=step, at="evaluation")
    return Mismatch("evaluation", at, (finding,), (Suspicion("evaluation", why),), independent=True)


def evaluating(pair: Pair) -> Mismatch | None:
    """Return the mismatch of evaluations that no difference of the training explains."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    step = parting(pair)
    for ours, theirs in zip(left.evaluations, right.evaluations, strict=False):
        why = _own_difference(ours, theirs, parting=step)
        if ours.step == theirs.step and why:
            return _of_evaluation(ours.step, why, "where bits should be equal")
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
    found = _exact_suspect(left, right, len(left.losses) if step is None else step + 1, masked=masked)
    return found[1:] if found is not None else _by_place(left, right, step)


def _exact_suspect(
    left: LearnEvidence, right: LearnEvidence, last: int, *, masked: bool, precision: float = 0.0
) -> tuple[int, CauseCode, str] | None:
    """Return (step, cause, reason) of the first exact log that differs over the first `last` steps."""
    if None not in (left.dropout, right.dropout) and left.dropout != right.dropout:
        return 0, "rng", f"dropout is {_listed(right.dropout)} instead of {_listed(left.dropout)}"
    if None not in (left.start_sha256, right.start_sha256) and left.start_sha256 != right.start_sha256:
        return 0, "weights.init", "the learning curve starts from different weights, the probe does not"
    for ours, theirs in ((left.batches, right.batches), (left.rows, right.rows), (left.labels, right.labels)):
        place = _first(ours[:last], theirs[:last])
        if place is not None:
            return place, *_batch(left, right, place, masked=masked)
    rates = enumerate(zip(left.learning_rates[:last], right.learning_rates[:last], strict=False))
    for place, (rate, other) in rates:
        if rate != other and relative(rate, other) > precision:
            resumed = f", at a resume at step {right.resumed_at[-1]}" if place in right.resumed_at else ""
            text = f"step {place} was taken with a learning rate of {other} instead of {rate}{resumed}"
            return place, "schedule", text
    return None


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
