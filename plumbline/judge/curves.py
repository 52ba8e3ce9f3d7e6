"""Learning curves that diverge after equal probes: what reruns of both sides show. Pure.

The first experiment is an unchanged, uninterrupted rerun. If it gives the reference's bits, the cause is an
interruption of the candidate, or chance. If it gives neither side's bits, the candidate does not agree with itself,
unless a second rerun repeats the first and the records name a cause: then the curve depends on the parts before it,
which no rerun has. If it gives the candidate's bits, a suspect that the records show is restored by its definition. If
that does not help, the reference runs again. If it does not give its own bits, it is the side that differs: the
candidate is not accused. If it does, a cause that the records show themselves, such as by a window, is confirmed.

Steps recorded as a probe, to restore the reference's values there, named 1 of 216 faults more (ADR 0036).
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.judge.attribution import nondeterminism
from plumbline.judge.comparison import cause_of
from plumbline.judge.confirmation import Confirmation, Side
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair, first_step_apart
from plumbline.judge.restored import RestoredOutcome
from plumbline.judge.rungs.bits import bits_due
from plumbline.judge.suspects import differences
from plumbline.judge.walk import attributed, evaluated, formula, logged
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.fact import fact
from plumbline.schema.tolerance import limit, loss_gap
from plumbline.schema.verdict import Cause, Judgement


def has_equal_bits(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    """Return whether two learning curves have equal bits over `steps` steps."""
    if not _has_equal_losses(side, rerun, steps):
        return False
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or steps < learn.steps:
        return True
    ends = [(curve.last_weights, curve.evaluations) for curve in (learn, other)]
    return learn.last_weights is not None and ends[0] == ends[1]


def has_equal_evaluations(side: LoadedRecord, rerun: LoadedRecord) -> bool:
    """Return whether a rerun's curve is equal, and its evaluations within rounding."""
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or not _has_equal_losses(side, rerun, learn.steps):
        return False
    if learn.last_weights is None or learn.last_weights != other.last_weights:
        return False
    most = limit("loss", side.record.spec.precision_of("learn"))
    same = (
        (ours.step, ours.num_rows, ours.rows_sha256, ours.training_mode, ours.accuracy)
        == (theirs.step, theirs.num_rows, theirs.rows_sha256, theirs.training_mode, theirs.accuracy)
        and loss_gap(ours.loss, theirs.loss) <= most
        for ours, theirs in zip(learn.evaluations, other.evaluations, strict=False)
    )
    return len(learn.evaluations) == len(other.evaluations) and all(same)


def was_interrupted(side: LoadedRecord, step: int | None) -> bool:
    """Return whether a training resumed before `step`; `None`: at any step."""
    learn = side.record.evidence.learn
    return learn is not None and any(at <= (learn.steps if step is None else step) for at in learn.resumed_at)


def _has_equal_losses(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or len(other.losses) < steps:
        return False
    return learn.losses[:steps] == other.losses[:steps] and None not in other.losses[:steps]


def _steps_to_repeat(reference: LearnEvidence, candidate: LearnEvidence) -> int:
    """Return how many steps show the first difference of two learning curves.

    Without any difference of the losses, all steps.
    """
    place = first_step_apart(reference, candidate)
    steps = reference.steps
    return steps if place is None else min(max(place - 1, 0) + 2 + limits.STEPS_AFTER, steps)


def separated(judgement: Judgement, pair: Pair) -> tuple[Mismatch, int] | None:
    """Return the mismatch of two curves' bits, and how many steps to repeat.

    `None` if the bits are equal, or if no rerun can show more.
    """
    checks = {finding.check for finding in judgement.findings if finding.outcome == "drift"}
    sides = [side.record.evidence.learn for side in (pair.reference, pair.candidate)]
    if not checks & {"learn.bits", "learn.evaluation"} or not bits_due(pair, "learn") or None in sides:
        return None
    bits = logged(pair, "learn")
    named = attributed(bits, formula(pair, "learn")) if bits is not None else evaluated(pair, None)
    mismatch = bits if bits is not None and named is not None and named.suspicions[0].code == "evaluation" else named
    if mismatch is None or sides[0] is None or sides[1] is None:
        return None
    # A measured number format needs no rerun of the curve.
    return None if mismatch.suspicions[0].code == "precision" else (mismatch, _steps_to_repeat(sides[0], sides[1]))


def repeated(state: Confirmation, rerun: LoadedRecord) -> tuple[Cause, ...]:
    """Confirm the evaluation cause if the rerun repeats its difference."""
    if evaluated(Pair(state.reference, rerun), None) is None:
        return state.beside
    again = {"sure": "confirmed", "tried": (fact("rerun.same-evaluation"),)}
    return tuple(cause.replace(**again) if cause.code == "evaluation" else cause for cause in state.beside)


def unsteady_curve(state: Confirmation, until: int, rerun: LoadedRecord) -> Confirmation:
    """Evaluate an unchanged rerun that did not reproduce the candidate's bits."""
    mismatch = state.pending[0]
    was_cut = was_interrupted(state.candidate, mismatch.at.step)
    is_reference = has_equal_bits(state.reference, rerun, until)
    if was_cut and is_reference:
        alone = state.ended(fact("rerun.uninterrupted"))
        cause = state.cause(mismatch).replace(tried=alone.tried)
        sure = cause if cause.code == "unattributed" else cause.replace(sure="confirmed")
        return replace(alone, settled=(*state.settled, sure), pending=())
    if state.rerun is not None and has_equal_bits(state.rerun, rerun, until):
        return state.ended(fact("rerun.alone"))
    is_named = mismatch.suspicions[0].shown and not was_cut
    if is_named and not is_reference and state.rerun is None and state.has_budget:
        return replace(state, rerun=rerun)
    return replace(state.ended(), settled=(*state.settled, _unsteady("candidate", until)), pending=())


def defined(state: Confirmation, until: int, suspicion: Suspicion, record: LoadedRecord) -> RestoredOutcome:
    """Evaluate a curve that recomputed the suspect value by its definition."""
    if suspicion.code == "evaluation":
        restored = has_equal_evaluations(state.reference, record)
    else:
        restored = has_equal_bits(state.reference, record, until)
    return RestoredOutcome(restored, fact("curve.equal") if restored else fact("curve.differs"))


def untested(state: Confirmation) -> Confirmation:
    """Run the reference again, or end if that would show no more."""
    of_evaluation = state.pending[0].suspicions[0].code == "evaluation"
    return state.ended() if of_evaluation or state.rerun is None else replace(state, state="reference")


def reference_reran(state: Confirmation, until: int, record: LoadedRecord) -> Confirmation:
    """Evaluate the reference's unchanged rerun: a difference shown by the records is confirmed."""
    if not has_equal_bits(state.reference, record, until):
        return _in_reference(state, until, record)
    mismatch, tried = state.pending[0], (*state.tried, fact("rerun.reference-equal-bits"))
    if not mismatch.suspicions[0].shown:
        return replace(state.ended(), tried=tried)
    cause = state.cause(mismatch).replace(sure="confirmed", tried=tried)
    return replace(state.ended(), settled=(*state.settled, cause), pending=())


def _in_reference(state: Confirmation, until: int, record: LoadedRecord) -> Confirmation:
    """End the tests: the reference does not reproduce its own bits."""
    step = state.pending[0].at.step
    if kernels := rounds_differently(state.reference.record, record.record, "learn"):
        return state.ended(fact("rerun.reference-different-machine", difference=kernels[0]))
    cause = _unsteady("reference", until)
    if was_interrupted(state.reference, step) and has_equal_bits(state.candidate, record, until):
        mismatch = logged(Pair(state.candidate, state.reference), "learn", is_due=True) or state.pending[0]
        suspects = differences(state.candidate.record.fingerprint, state.reference.record.fingerprint)
        cause = cause_of(mismatch, suspects)
        sure = "unattributed" if cause.code == "unattributed" else "confirmed"
        cause = cause.replace(sure=sure, tried=(*state.tried, fact("rerun.reference-uninterrupted")))
    return replace(state.ended(), reference_cause=cause)


def _unsteady(side: Side, until: int) -> Cause:
    """Return the `nondeterminism` cause of a side that differs from its rerun."""
    return nondeterminism(fact("curve.unsteady", side=side, differs=fact("curve.rerun-differs", step=until)))
