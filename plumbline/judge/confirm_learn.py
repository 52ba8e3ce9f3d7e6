"""Search for the window of a learning curve in which it separates after a bitwise equal probe.

The first experiment is an unchanged, uninterrupted rerun, which traces the steps that separate with the probe's
evidence. If it gives the reference's bits, the cause is an interruption of the candidate, or chance. If it gives
neither side's bits, the candidate does not agree with itself, unless a second rerun repeats the first and the records
name a cause: then the curve depends on the parts before it, which no rerun has. If it gives the candidate's bits, a
suspect that the records show is restored by its definition. If that does not help, the reference traces the same steps,
and the search ends in the tests of both traces, which are those of two probes. If the reference's rerun does not give
the reference's bits, the reference is the side that differs: the candidate is not accused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from plumbline.judge.compared import Comparisons, curve_formula
from plumbline.judge.comparison import cause_of
from plumbline.judge.confirm import Confirmation
from plumbline.judge.confirm_requests import NO_RECORD, Request, experiment_name, unanswered
from plumbline.judge.consensus import Doubt, exonerate
from plumbline.judge.curves import (
    Window,
    earlier_window,
    first_window,
    has_equal_bits,
    has_equal_evaluations,
    machine_changes,
    trace_problem,
    was_interrupted,
)
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.learning import evaluating, learning
from plumbline.judge.rungs.windows import with_windows
from plumbline.judge.suspects import differences
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.experiment import Experiment, Replay
from plumbline.schema.experiment import Rung as ReplayRung
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement

_WAYS: dict[str, tuple[ReplayRung, str]] = {
    "schedule": ("schedule", "the learning rates by the schedule's definition"),
    "rng": ("dropout", "the dropout that the spec asks for"),
    "evaluation": ("evaluation", "the evaluation by its definition"),
}
"""Replays that need no tensors of the reference, by cause."""


@dataclass(frozen=True)
class WindowSearch:
    """Immutable state of the search; each step returns a new state, and the last one the tests of the window."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    mismatch: Mismatch
    window: Window
    steady: bool = False
    """Whether the unchanged rerun gave the candidate's bits again."""
    defined: bool = False
    """Whether the suspect's value was restored by its definition."""
    control: LoadedRecord | None = None
    """A first unchanged rerun that has neither side's bits."""
    own: LoadedRecord | None = None
    """The candidate's trace of `window`."""
    other: LoadedRecord | None = None
    """The reference's trace of `window`."""
    repeats_evaluation: bool = False
    """Whether the unchanged rerun showed the same difference of an evaluation."""
    closed: Cause | None = None
    reference_cause: Cause | None = None
    """Cause in the reference, if its own rerun shows that the reference is the side that differs."""
    tried: tuple[Statement, ...] = ()
    spent: int = 0
    lost: int = 0

    def next(self) -> Request | None:
        """Return the next experiment; `None` at the end or without budget left."""
        if self.closed is not None or self.reference_cause is not None or self.spent >= self.budget:
            return None
        if not self.steady:
            return self._request("candidate", "control experiment: unchanged rerun of the learning curve")
        if self._is_definable:
            rung, description = _WAYS[self.mismatch.suspicions[0].code]
            return self._request("candidate", description, Replay(rung=rung))
        side: Literal["reference", "candidate"] = "reference" if self.other is None else "candidate"
        return self._request(side, f"trace of the learning curve's steps {self._traced_steps}")

    def absorb(
        self, request: Request, record: LoadedRecord | None, why: Statement = NO_RECORD
    ) -> WindowSearch | Confirmation:
        """Evaluate an experiment's record; `None` means lost, for the reason `why`."""
        spent = replace(self, spent=self.spent + 1)
        if record is not None and (problem := unanswered(request, record)):
            record, why = None, problem
        if record is None and self.lost < limits.MOST_LOST:
            return replace(spent, budget=self.budget + 1, lost=self.lost + 1)
        if record is None or record.record.exit.status != "completed":
            reason = why if record is None else record.record.exit.message
            return spent._close(fact("experiment.failed", suspect=request.experiment.suspect, why=reason))
        if not self.steady:
            return spent._reran(record)
        if request.experiment.replays:
            return spent._restored(request, record)
        return spent._referenced(record) if request.runs_on == "reference" else replace(spent, own=record)._compared()

    @property
    def judgement(self) -> Judgement:
        """Return the judgement with its causes as certain as the experiments show."""
        if self.reference_cause is not None:
            why = fact("doubt.reference-differs", why=self.reference_cause.why)
            return exonerate(self.base, Doubt("inconclusive", why), "").replace(causes=())
        cause = self.closed or self._cause().replace(tried=self.tried)
        others = tuple(other for other in self._others() if other.code != cause.code)
        return self.base.replace(causes=[entry.model_dump() for entry in (cause, *others)])

    def _others(self) -> tuple[Cause, ...]:
        """Return the causes beside that of the curve."""
        return tuple(self._as_repeated(cause) for cause in self.base.causes if cause.code != self._cause().code)

    def _as_repeated(self, cause: Cause) -> Cause:
        if cause.code != "evaluation" or not self.repeats_evaluation:
            return cause
        return cause.replace(sure="confirmed", tried=(fact("rerun.same-evaluation"),))

    def _reran(self, record: LoadedRecord) -> WindowSearch:
        """Evaluate the unchanged rerun."""
        if has_equal_bits(self.candidate, record, self.window.until):
            repeats = evaluating(Pair(self.reference, record)) is not None
            steady = replace(
                self,
                steady=True,
                tried=(fact("rerun.equal-bits"),),
                own=record,
                repeats_evaluation=repeats,
            )
            return steady if steady._is_definable else steady._traceable()
        kernels = machine_changes(self.candidate, record)
        if kernels:
            return self._close(fact("rerun.different-machine", difference=kernels[0]))
        step = self.mismatch.at.step
        if was_interrupted(self.candidate, step) and has_equal_bits(self.reference, record, self.window.until):
            return self._close(fact("rerun.uninterrupted"), sure="confirmed")
        is_named = self.mismatch.suspicions[0].code != "unattributed" and not was_interrupted(self.candidate, step)
        if self.control is not None and has_equal_bits(self.control, record, self.window.until):
            return self._close(fact("rerun.alone"))
        is_chance = self.control is not None or has_equal_bits(self.reference, record, self.window.until)
        if is_named and not is_chance and self.spent < self.budget:
            return replace(self, control=record)
        return replace(self, closed=self._unsteady("candidate"))

    def _restored(self, request: Request, record: LoadedRecord) -> WindowSearch:
        """Evaluate the curve with the suspect's value restored by its definition."""
        if self._is_of_evaluation:
            restored = has_equal_evaluations(self.reference, record)
        else:
            restored = has_equal_bits(self.reference, record, request.experiment.steps)
        text = fact("curve.equal") if restored else fact("curve.differs")
        text = fact("experiment.result", what=request.experiment.suspect, result=text)
        if restored:
            return self._close(text, sure="confirmed")
        return replace(self, defined=True, tried=(*self.tried, text))._traceable()

    def _traceable(self) -> WindowSearch:
        """Close the test if no trace can name more."""
        if self._is_of_evaluation:
            return self._close("")
        problem = trace_problem(self.own, self.window) if self.own else ""
        problem = fact("trace.compiled") if self._is_compiled else problem
        return self._close(fact("trace.incomplete", side="candidate", problem=problem)) if problem else self

    def _referenced(self, record: LoadedRecord) -> WindowSearch | Confirmation:
        """Evaluate the reference's trace: it must have the bits of the reference's training."""
        until = self.window.until
        if not has_equal_bits(self.reference, record, until):
            kernels = machine_changes(self.reference, record)
            if kernels:
                return self._close(fact("rerun.reference-different-machine", difference=kernels[0]))
            interrupted = was_interrupted(self.reference, self.mismatch.at.step)
            if interrupted and has_equal_bits(self.candidate, record, until):
                return self._in_reference(fact("rerun.reference-uninterrupted"))
            return replace(self, reference_cause=self._unsteady("reference"))
        return replace(self, other=record)._compared()

    def _compared(self) -> WindowSearch | Confirmation:
        """Compare two traces of the same steps, or ask for the steps at which the weights separate."""
        own, other = self.own, self.other
        if own is None or other is None:
            return self
        for side, record, trained in (("candidate", own, self.candidate), ("reference", other, self.reference)):
            if problem := trace_problem(record, self.window):
                return self._close(fact("trace.incomplete", side=side, problem=problem))
            if not has_equal_bits(trained, record, self.window.until):
                return self._close(fact("trace.different-bits", side=side))
        earlier = earlier_window(self.window, other, own)
        if earlier is not None:
            text = fact("curve.earlier", steps=self._traced_steps)
            return replace(self, window=earlier, own=None, other=None, tried=(*self.tried, text))
        traced = replace(self, tried=(*self.tried, fact("curve.traced", steps=self._traced_steps)))
        return traced._begun(own, other)

    def _begun(self, own: LoadedRecord, other: LoadedRecord) -> WindowSearch | Confirmation:
        """Return the tests of two complete traces; the candidate's is its own unchanged rerun."""
        tests = Confirmation.of_traces(
            other, own, self.base, self.tried, window=self.window, budget=self.budget,
            spent=self.spent, lost=self.lost, subject=self.candidate.record.record_id,
            beside=self._others(),
        )  # fmt: skip
        return tests or self._close(fact("trace.agree"))

    def _in_reference(self, text: Statement) -> WindowSearch:
        """Close the test with the cause of the reference's difference from the candidate."""
        mismatch = learning(Pair(self.candidate, self.reference)) or self.mismatch
        suspects = differences(self.candidate.record.fingerprint, self.reference.record.fingerprint)
        cause = cause_of(mismatch, suspects)
        sure = "unattributed" if cause.code == "unattributed" else "confirmed"
        return replace(self, reference_cause=cause.replace(sure=sure, tried=(*self.tried, text)))

    def _unsteady(self, side: Literal["reference", "candidate"]) -> Cause:
        differs = fact("curve.rerun-differs", step=self.window.until)
        why = fact("curve.unsteady", side=side, differs=differs)
        return Cause(
            code="nondeterminism",
            sure="confirmed",
            why=why,
            tried=(fact("rerun.different-bits"),),
        )

    def _close(self, text: Statement, *, sure: str = "") -> WindowSearch:
        tried = (*self.tried, text) if text else self.tried
        cause = self._cause().replace(tried=tried)
        if sure and cause.code != "unattributed":
            cause = cause.replace(sure=sure)
        return replace(self, closed=cause, tried=tried)

    def _cause(self) -> Cause:
        code = self.mismatch.suspicions[0].code
        suspects = differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)
        return next((cause for cause in self.base.causes if cause.code == code), cause_of(self.mismatch, suspects))

    @property
    def _is_of_evaluation(self) -> bool:
        """Return whether losses and weights agree to the end."""
        return self.mismatch.suspicions[0].code == "evaluation"

    @property
    def _is_definable(self) -> bool:
        return self.mismatch.suspicions[0].code in _WAYS and not self.defined

    @property
    def _is_compiled(self) -> bool:
        """Return whether taps would change the compiled kernels, and so the bits."""
        learn = self.reference.record.spec.learn
        return learn is not None and learn.compile

    @property
    def _traced_steps(self) -> str:
        return f"{self.window.first} to {self.window.until - 1}"

    def _request(self, side: Literal["reference", "candidate"], description: str, *replays: Replay) -> Request:
        name = experiment_name(self.candidate.record.record_id, self.spent)
        experiment = Experiment(
            experiment_id=name, suspect=description, steps=self.window.until, part="learn",
            trace=None if replays or self._is_compiled else self.window.first, replays=replays,
        )  # fmt: skip
        return Request(side, experiment)


def _named(pair: Pair) -> Mismatch | None:
    """Return the mismatch of two curves, named by their windows if these name a part of the training."""
    bits = learning(pair)
    named = with_windows(bits, curve_formula(pair)) if bits is not None else None
    return bits if named is None or named.suspicions[0].code == "evaluation" else named


def begin_confirmation(
    reference: LoadedRecord,
    candidate: LoadedRecord,
    judgement: Judgement,
    budget: int,
    table: Comparisons | None = None,
) -> Confirmation | WindowSearch:
    """Return the state machine for a judgement's causes, with at most `budget` reruns."""
    if budget > 0 and any(
        finding.check == "learn.bits" and finding.outcome == "drift" for finding in judgement.findings
    ):
        mismatch = _named((table if table is not None else Comparisons()).of(reference, candidate).pair)
        curves = (reference.record.evidence.learn, candidate.record.evidence.learn)
        # A measured number format needs no trace of the curve.
        is_format = mismatch is not None and mismatch.suspicions[0].code == "precision"
        if mismatch is not None and not is_format and curves[0] is not None and curves[1] is not None:
            window = first_window(curves[0], curves[1])
            return WindowSearch(reference, candidate, judgement, budget, mismatch, window)
    return Confirmation.begin(reference, candidate, judgement, budget, table)
