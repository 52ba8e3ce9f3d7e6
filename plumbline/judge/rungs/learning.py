"""Comparison of learning curves that must be bitwise equal.

The record of a curve names a cause only where it shows the difference itself: initial weights, dropout, batches,
learning rates, evaluations. Every other cause is named by a window (`windows`).
"""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.gates.accuracy import parting
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.evaluation import miscount
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import EvaluationEvidence, LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.task import draws_labels
from plumbline.schema.tolerance import limit as limit_of
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import CauseCode, Divergence, Finding


def learning(pair: Pair) -> Mismatch | None:
    """Return the mismatch of two learning curves that must be bitwise equal."""
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None or left.weights_sha256 is None or right.weights_sha256 is None:
        return None
    step = parting(pair)
    if step is None and (left.weights_sha256, left.evaluations) == (right.weights_sha256, right.evaluations):
        return None
    if step is None and left.weights_sha256 == right.weights_sha256:
        # Of equal trainings, what an evaluation was given says more than that its result differs.
        fed = _evaluated_differently(left, right, fact("learning.bits-due"))
        if fed is not None:
            return fed
    masked = draws_labels(pair.reference.record.spec.task)
    exact = _exact_suspect(left, right, len(left.losses) if step is None else step + 1, masked=masked)
    code, why = exact[1:] if exact is not None else _by_place(left, right, step)
    metric, detail = fact("learning.first-different-bit"), fact("learning.no-excuse")
    finding = Finding(check="learn.bits", outcome="drift", metric=metric, observed=step, detail=detail)
    at = Divergence(stage="learn", step=step, at="loss" if step is not None else "weights")
    suspicion = Suspicion(code, why, shown=exact is not None and code != "unattributed")
    return Mismatch("learn", at, (finding,), (suspicion,), basis="given")


def logged(pair: Pair) -> Mismatch | None:
    """Return the mismatch of values that both curves log exactly.

    These are dropout, start weights, batches, learning rates, and the rows and mode of each evaluation. Beside them
    stands the first loss, whose weights and batch are equal: later losses separate by rounding alone.
    """
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    masked = draws_labels(pair.reference.record.spec.task)
    found = _exact_suspect(left, right, len(left.losses), masked=masked, precision=limits.EXACT)
    if found is None and (apart := _evaluated_apart(left, right, fact("learning.whatever-rounding"))) is not None:
        return apart
    place, code, why = found or _first_loss(pair, left, right) or (None, None, "")
    if code is None:
        return None
    metric = fact("learning.first-beyond-rounding")
    finding = Finding(check="learn.exact", outcome="drift", metric=metric, observed=place, detail=why)
    at = Divergence(stage="learn", step=place, at=_PLACES.get(code, "loss"))
    return Mismatch("learn", at, (finding,), (Suspicion(code, why),), basis="given")


_PLACES: dict[CauseCode, str] = {"rng": "dropout", "weights.init": "weights", "schedule": "learning_rate"}


def _first_loss(pair: Pair, left: LearnEvidence, right: LearnEvidence) -> tuple[int, CauseCode, Statement] | None:
    """Return the first loss that differs by more than rounding can explain."""
    if not left.losses or not right.losses or None in left.losses or None in right.losses:
        return None
    spec = pair.reference.record.spec.learn
    ours, theirs = float(left.losses[0] or 0.0), float(right.losses[0] or 0.0)
    # A loss changes by at most the change of its logits, and so by their limit; a small loss has no smaller logits.
    if abs(theirs - ours) > limit_of("gradient", spec.precision if spec else "fp32") * max(abs(ours), 1.0):
        return 0, "unattributed", fact("learning.first-loss", loss=theirs, reference=ours)
    most = limits.HIGHEST_LOSS * max(abs(loss) for loss in left.losses if loss is not None)
    place = next((step for step, loss in enumerate(right.losses) if loss is not None and abs(loss) > most), None)
    if place is None:
        return None
    return place, "unattributed", fact("learning.loss-too-large", step=place, loss=right.losses[place], most=most)


def _evaluated_differently(left: LearnEvidence, right: LearnEvidence, where: Statement) -> Mismatch | None:
    """Return the first evaluation with equal rows but different inputs or labels."""
    fed = zip(left.evaluations, right.evaluations, left.evaluated, right.evaluated, strict=False)
    for ours, theirs, known, other in fed:
        if ours.rows_sha256 != theirs.rows_sha256 or known == other:
            continue
        if known[1] != other[1]:  # of other hidden tokens, the labels are others, too
            return _of_evaluation(ours.step, fact("learning.evaluated-inputs"), where)
        return _of_evaluation(ours.step, fact("learning.evaluated-labels"), where, "data.labels")
    return None


def _of_evaluation(step: int, why: Statement, where: Statement, code: CauseCode = "evaluation") -> Mismatch:
    metric = fact("learning.evaluation-at", step=step, where=where)
    finding = Finding(check="learn.evaluation", outcome="drift", metric=metric, detail=why)
    at = Divergence(stage="evaluation", step=step, at="evaluation")
    return Mismatch("evaluation", at, (finding,), (Suspicion(code, why),), basis="given")


def miscounted(pair: Pair, *, loss: bool = True) -> Mismatch | None:
    """Return an evaluation that contradicts its own logits and labels.

    `loss`: compare the loss, too, which a different loss function of the training changes.
    """
    for side, record in (("reference", pair.reference), ("candidate", pair.candidate)):
        for step, (name, number, own) in _miscounts(record):
            if loss or name != "loss":
                why = fact("learning.recounted", side=side, name=name, number=number, own=own, step=step)
                return _of_evaluation(step, why, fact("learning.whatever-rounding"))
    return None


def _miscounts(record: LoadedRecord) -> Iterator[tuple[int, tuple[str, float | None, float | None]]]:
    """Yield the steps whose evaluation contradicts its logits, and which number does."""
    curve = record.record.evidence.learn
    if curve is None or not curve.evaluations:
        return
    both = zip(curve.evaluations, curve.recounted, strict=False)
    yield from ((found.step, off) for found, own in both if (off := miscount(found, own)) is not None)
    last = curve.evaluations[-1]
    if (right := record.answers.get("right")) is not None and right.size:
        share = float(right.sum()) / right.size
        if last.accuracy is None or abs(last.accuracy - share) > limits.EXACT:
            yield last.step, ("accuracy", last.accuracy, share)


def evaluating(pair: Pair, apart: Mismatch | None = None) -> Mismatch | None:
    """Return the evaluation mismatch that different training cannot explain.

    In bf16, weights that differ slightly may give equal losses.
    """
    left, right = pair.reference.record.evidence.learn, pair.candidate.record.evidence.learn
    if left is None or right is None:
        return None
    step = parting(pair)
    if step is not None and apart is not None and apart.at.step is not None:
        step = min(step, apart.at.step)
    return _evaluated_apart(left, right, fact("learning.bits-due"), step)


def _evaluated_apart(
    left: LearnEvidence, right: LearnEvidence, where: Statement, parting: int | None = None
) -> Mismatch | None:
    """Return the first evaluation that differs independently of training."""
    if (fed := _evaluated_differently(left, right, where)) is not None:
        return fed
    for ours, theirs in zip(left.evaluations, right.evaluations, strict=False):
        why = _own_difference(ours, theirs, parting=parting)
        if ours.step == theirs.step and why:
            return _of_evaluation(ours.step, why, where)
    return None


def _own_difference(ours: EvaluationEvidence, theirs: EvaluationEvidence, *, parting: int | None) -> Statement:
    """Describe how an evaluation differs although training does not."""
    if ours.training_mode != theirs.training_mode:
        return fact("learning.mode", mode="training" if theirs.training_mode else "evaluation")
    if (ours.num_rows, ours.rows_sha256) != (theirs.num_rows, theirs.rows_sha256):
        return fact("learning.evaluated-rows")
    # The loss of the step after an evaluation has the weights of the evaluation.
    if ours != theirs and parting is not None and ours.step < parting:
        return fact("learning.evaluation", step=ours.step)
    return ""


def first_logged_difference(left: LearnEvidence, right: LearnEvidence) -> int | None:
    """Return the first step with a different batch, learning rate or loss."""
    logs = ((left.batches, right.batches), (left.learning_rates, right.learning_rates), (left.losses, right.losses))
    places = [place for ours, theirs in logs if (place := _first(ours, theirs)) is not None]
    return min(places, default=None)


def _exact_suspect(
    left: LearnEvidence, right: LearnEvidence, last: int, *, masked: bool, precision: float = 0.0
) -> tuple[int, CauseCode, Statement] | None:
    """Return (step, cause, reason) of the first different exactly logged value."""
    if None not in (left.dropout, right.dropout) and left.dropout != right.dropout:
        return 0, "rng", fact("learning.dropout", dropout=_listed(right.dropout), reference=_listed(left.dropout))
    if None not in (left.start_sha256, right.start_sha256) and left.start_sha256 != right.start_sha256:
        return 0, "weights.init", fact("learning.start")
    for ours, theirs in ((left.batches, right.batches), (left.rows, right.rows), (left.labels, right.labels)):
        place = _first(ours[:last], theirs[:last])
        if place is not None:
            return place, *_batch(left, right, place, masked=masked)
    rates = enumerate(zip(left.learning_rates[:last], right.learning_rates[:last], strict=False))
    for place, (rate, other) in rates:
        if rate != other and relative(rate, other) > precision:
            resumed = fact("learning.at-resume", step=right.resumed_at[-1]) if place in right.resumed_at else ""
            text = fact("learning.rate", step=place, rate=other, reference=rate, resumed=resumed)
            return place, "schedule", text
    return None


def _batch(left: LearnEvidence, right: LearnEvidence, place: int, *, masked: bool) -> tuple[CauseCode, Statement]:
    """Return the cause of a different batch, from its digests."""
    logs = (left.rows, right.rows, left.labels, right.labels)
    if any(len(log) <= place for log in logs):
        return "data.order", fact("learning.rows-or-ids", step=place)
    if left.rows[place] != right.rows[place]:
        return "data.order", fact("learning.rows", step=place)
    if masked:
        return "unattributed", fact("learning.ids-or-masks", step=place)
    if left.labels[place] != right.labels[place]:
        return "data.labels", fact("learning.labels", step=place)
    return "tokenization", fact("learning.ids", step=place)


def _by_place(left: LearnEvidence, right: LearnEvidence, step: int | None) -> tuple[CauseCode, Statement]:
    """Guess a cause from the first different step; otherwise `unattributed`."""
    if step is None and left.weights_sha256 == right.weights_sha256:
        return "evaluation", fact("learning.evaluations-alone")
    if step is None:
        return "unattributed", fact("learning.final-weights-alone")
    restarts = [at for at in (*left.resumed_at, *right.resumed_at) if at <= step]
    if restarts:
        return "optimizer", fact("learning.parts-after-resume", step=step, resumed_at=restarts[-1])
    return "unattributed", fact("learning.parts", step=step)


def _first(left: tuple[object, ...], right: tuple[object, ...]) -> int | None:
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), None)


def _listed(values: tuple[float, ...] | None) -> str:
    return ", ".join(map(str, values)) if values else "0"
