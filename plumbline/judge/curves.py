"""Learning curves that diverge after equal probes: first step, reruns, traces. Pure.

The first experiment is an unchanged, uninterrupted rerun, which traces the steps that separate with the probe's
evidence. If it gives the reference's bits, the cause is an interruption of the candidate, or chance. If it gives
neither side's bits, the candidate does not agree with itself, unless a second rerun repeats the first and the records
name a cause: then the curve depends on the parts before it, which no rerun has. If it gives the candidate's bits, a
suspect that the records show is restored by its definition. If that does not help, the reference traces the same steps,
and both traces are tested as two probes are. If the reference's rerun does not give the reference's bits, the reference
is the side that differs: the candidate is not accused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from plumbline.judge.attribution import nondeterminism
from plumbline.judge.compared import curve_formula
from plumbline.judge.comparison import cause_of
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.restored import RestoredOutcome
from plumbline.judge.rungs.learning import evaluating, first_logged_difference, learning
from plumbline.judge.rungs.windows import with_windows
from plumbline.judge.suspects import differences
from plumbline.judge.walk import walk
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import limit, relative
from plumbline.schema.verdict import Cause, Judgement

if TYPE_CHECKING:
    from plumbline.judge.confirm import Confirmation

Side = Literal["reference", "candidate"]


def has_equal_bits(side: LoadedRecord, rerun: LoadedRecord, steps: int) -> bool:
    """Return whether two learning curves have equal bits over `steps` steps."""
    if not _has_equal_losses(side, rerun, steps):
        return False
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or steps < learn.steps:
        return True
    ends = [(curve.weights_sha256, curve.evaluations) for curve in (learn, other)]
    return learn.weights_sha256 is not None and ends[0] == ends[1]


def has_equal_evaluations(side: LoadedRecord, rerun: LoadedRecord) -> bool:
    """Return whether a rerun's curve is equal, and its evaluations within rounding."""
    learn, other = side.record.evidence.learn, rerun.record.evidence.learn
    if learn is None or other is None or not _has_equal_losses(side, rerun, learn.steps):
        return False
    if learn.weights_sha256 is None or learn.weights_sha256 != other.weights_sha256:
        return False
    spec = side.record.spec.learn
    most = limit("loss", spec.precision if spec else "fp32")
    same = (
        (ours.step, ours.num_rows, ours.rows_sha256, ours.training_mode, ours.accuracy)
        == (theirs.step, theirs.num_rows, theirs.rows_sha256, theirs.training_mode, theirs.accuracy)
        and relative(ours.loss, theirs.loss) <= most
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


@dataclass(frozen=True, slots=True)
class Window:
    """Steps of a learning curve from `first` to before `until`."""

    first: int
    until: int

    def __str__(self) -> str:
        return f"{self.first} to {self.until - 1}"


def _window(first: int, steps: int) -> Window:
    """Return the window of steps around a difference: before, at, and after."""
    return Window(first, min(first + 2 + limits.STEPS_AFTER, steps))


def first_window(reference: LearnEvidence, candidate: LearnEvidence) -> Window:
    """Return the window around the first difference that the curve records show.

    The update of the step before is included: its gradients or its weights may differ, and its loss not. Without any
    difference of the losses, the last steps.
    """
    place = first_logged_difference(reference, candidate)
    steps = reference.steps
    return _window(max((steps if place is None else place) - 1, 0), steps)


def earlier_window(window: Window, reference: LoadedRecord, candidate: LoadedRecord) -> Window | None:
    """Return the window around the first different weights, if before `window`.

    Losses in fp32 can agree for some steps after the weights have separated.
    """
    left, right = reference.record.evidence.trace, candidate.record.evidence.trace
    if left is None or right is None or window.first == 0:
        return None
    pairs = enumerate(zip(left.weights, right.weights, strict=False))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
    if place is None or place > window.first:
        return None
    return _window(max(place - 1, 0), window.until)


def trace_problem(record: LoadedRecord, window: Window) -> Statement:
    """Return why a record is not a complete trace of `window`, or ""."""
    experiment, evidence = record.record.experiment, record.record.evidence
    if experiment is None or evidence.trace is None or evidence.probe is None:
        return fact("trace.none")
    if (experiment.trace, experiment.steps, evidence.trace.first) != (window.first, window.until, window.first):
        return fact("trace.steps", first=window.first, until=window.until)
    if len(evidence.trace.weights) <= window.first:
        return fact("trace.checksums")
    return next((finding.detail for finding in missing_evidence(record, "trace")), "")


def separated(judgement: Judgement, pair: Pair) -> tuple[Mismatch, Window] | None:
    """Return the mismatch of two curves' bits, and the window to trace.

    `None` if the bits are equal, or if no trace can name more.
    """
    if not any(finding.check == "learn.bits" and finding.outcome == "drift" for finding in judgement.findings):
        return None
    bits, curves = learning(pair), [side.record.evidence.learn for side in (pair.reference, pair.candidate)]
    if bits is None or curves[0] is None or curves[1] is None:
        return None
    named = with_windows(bits, curve_formula(pair))
    mismatch = bits if named is None or named.suspicions[0].code == "evaluation" else named
    # A measured number format needs no trace of the curve.
    return None if mismatch.suspicions[0].code == "precision" else (mismatch, first_window(curves[0], curves[1]))


def is_compiled(side: LoadedRecord) -> bool:
    """Return whether the learning curve ran under torch.compile."""
    return side.record.spec.learn is not None and side.record.spec.learn.compile


def repeated(state: Confirmation, rerun: LoadedRecord) -> tuple[Cause, ...]:
    """Confirm the evaluation cause if the rerun repeats its difference."""
    if evaluating(Pair(state.reference, rerun)) is None:
        return state.beside
    again = {"sure": "confirmed", "tried": (fact("rerun.same-evaluation"),)}
    return tuple(cause.replace(**again) if cause.code == "evaluation" else cause for cause in state.beside)


def unsteady_curve(state: Confirmation, window: Window, rerun: LoadedRecord) -> Confirmation:
    """Evaluate an unchanged rerun that did not reproduce the candidate's bits."""
    mismatch, until = state.pending[0], window.until
    was_cut = was_interrupted(state.candidate, mismatch.at.step)
    is_reference = has_equal_bits(state.reference, rerun, until)
    if was_cut and is_reference:
        alone = state.ended(fact("rerun.uninterrupted"))
        cause = state.cause(mismatch).replace(tried=alone.tried)
        sure = cause if cause.code == "unattributed" else cause.replace(sure="confirmed")
        return replace(alone, settled=state.settled.settled(sure), pending=())
    if state.rerun is not None and has_equal_bits(state.rerun, rerun, until):
        return state.ended(fact("rerun.alone"))
    is_named = mismatch.suspicions[0].code != "unattributed" and not was_cut
    if is_named and not is_reference and state.rerun is None and state.has_budget:
        return replace(state, rerun=rerun)
    return replace(state.ended(), settled=state.settled.settled(_unsteady("candidate", until)), pending=())


def defined(state: Confirmation, window: Window, suspicion: Suspicion, record: LoadedRecord) -> RestoredOutcome:
    """Evaluate a curve that recomputed the suspect value by its definition."""
    if suspicion.code == "evaluation":
        restored = has_equal_evaluations(state.reference, record)
    else:
        restored = has_equal_bits(state.reference, record, window.until)
    return RestoredOutcome(restored, fact("curve.equal") if restored else fact("curve.differs"))


def traceable(state: Confirmation, window: Window) -> Confirmation:
    """Start tracing the window, or end if a trace would not help."""
    if state.pending[0].suspicions[0].code == "evaluation" or state.rerun is None:
        return state.ended()
    problem = trace_problem(state.rerun, window)
    if is_compiled(state.reference):
        problem = fact("trace.compiled")
    return state.ended(_incomplete("candidate", problem)) if problem else replace(state, state="trace")


def traced(state: Confirmation, window: Window, side: Side, record: LoadedRecord) -> Confirmation:
    """Compare both traces, or request an earlier window if weights differ before."""
    if side == "reference" and not has_equal_bits(state.reference, record, window.until):
        return _in_reference(state, window, record)
    traces = replace(state, prepared=record) if side == "reference" else replace(state, rerun=record)
    own, other = traces.rerun, traces.prepared
    if own is None or other is None:
        return traces
    if problem := _unusable(traces, window, own, other):
        return traces.ended(problem)
    earlier = earlier_window(window, other, own)
    if earlier is not None:
        tried = (*state.tried, fact("curve.earlier", steps=str(window)))
        return replace(state, window=earlier, rerun=None, prepared=None, tried=tried)
    known = replace(traces, tried=(*state.tried, fact("curve.traced", steps=str(window))))
    mismatches = walk(Pair(other, own)).mismatches
    if not mismatches:
        return known.ended(fact("trace.agree"))
    return replace(known, reference=other, candidate=own).steady(own, mismatches)


def _in_reference(state: Confirmation, window: Window, record: LoadedRecord) -> Confirmation:
    """End the tests: the reference's trace does not reproduce its bits."""
    step, until = state.pending[0].at.step, window.until
    if kernels := rounds_differently(state.reference.record, record.record, "learn"):
        return state.ended(fact("rerun.reference-different-machine", difference=kernels[0]))
    cause = _unsteady("reference", until)
    if was_interrupted(state.reference, step) and has_equal_bits(state.candidate, record, until):
        mismatch = learning(Pair(state.candidate, state.reference)) or state.pending[0]
        suspects = differences(state.candidate.record.fingerprint, state.reference.record.fingerprint)
        cause = cause_of(mismatch, suspects)
        sure = "unattributed" if cause.code == "unattributed" else "confirmed"
        cause = cause.replace(sure=sure, tried=(*state.tried, fact("rerun.reference-uninterrupted")))
    return replace(state.ended(), reference_cause=cause)


def _unusable(state: Confirmation, window: Window, own: LoadedRecord, other: LoadedRecord) -> Statement:
    """Return why the two traces cannot be compared, or ""."""
    for side, trace, trained in (("candidate", own, state.candidate), ("reference", other, state.reference)):
        if problem := trace_problem(trace, window):
            return _incomplete(side, problem)
        if not has_equal_bits(trained, trace, window.until):
            return fact("trace.different-bits", side=side)
    return ""


def _incomplete(side: str, problem: Statement) -> Statement:
    return fact("trace.incomplete", side=side, problem=problem)


def _unsteady(side: Side, until: int) -> Cause:
    """Return the `nondeterminism` cause of a side that differs from its rerun."""
    return nondeterminism(fact("curve.unsteady", side=side, differs=fact("curve.rerun-differs", step=until)))
