"""Confirmation by experiment: a pure state machine that requests reruns and evaluates their records.

The first request is an unchanged rerun, which shows whether the candidate agrees with itself. Then each suspicion is
tested: the probe's first steps run again with the suspect's value restored to the reference's. If the difference
disappears, the cause is confirmed; if not, the next suspicion is tested. After the last suspicion the cause is
`unattributed`, with everything that was tried. The caller runs the requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from plumbline.judge.attribution import SPEED, Attribution, still_likely, unattributed, unsteady
from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import cause_of
from plumbline.judge.confirm_requests import NO_RECORD, Request, experiment_name, unanswered
from plumbline.judge.curves import Window
from plumbline.judge.experiments import interventions, steps_of
from plumbline.judge.intervention import Intervention, Kept, only_trained
from plumbline.judge.mismatches import (
    Mismatch,
    Suspicion,
    is_same_place,
    is_trace_of_gradient,
    with_kernel_last,
    without,
)
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.restored import RestoredOutcome, agree_exactly, check_restored, disagreement
from plumbline.judge.rungs.portable import portable
from plumbline.judge.suspects import differences
from plumbline.judge.walk import position, walk
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.experiment import Experiment
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement


@dataclass(frozen=True)
class Confirmation:
    """Immutable state of the tests of one drift; each step returns a new state."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    pending_mismatches: tuple[Mismatch, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    """Suspicions of the first pending mismatch that are not refuted yet."""
    ways: tuple[Intervention, ...] = ()
    """Interventions on the first suspicion that are not tried yet."""
    rerun: LoadedRecord | None = None
    captured: str = ""
    exact: LoadedRecord | None = None
    in_fp64: Pair | None = None
    """Reference and candidate in fp64, once that removed a cause: later experiments are run and compared in fp64."""
    kept: tuple[Kept, ...] = ()
    tried: tuple[Statement, ...] = ()
    settled: Attribution = field(default_factory=Attribution)
    spent: int = 0
    lost: int = 0
    window: Window | None = None
    """Steps of the learning curve that both records trace; `None` is the probe."""
    subject: str = ""
    """Record of the training whose window is tested, by which its experiments are named; empty is the candidate's."""
    beside: tuple[Cause, ...] = ()
    """Causes that no experiment of these tests is about."""

    @classmethod
    def begin(
        cls,
        reference: LoadedRecord,
        candidate: LoadedRecord,
        judgement: Judgement,
        budget: int,
        table: Comparisons | None = None,
    ) -> Confirmation:
        """Return the state before the first of at most `budget` reruns; `table` has the comparison of the two."""
        beside = tuple(cause for cause in judgement.causes if cause.code in SPEED)
        start = cls(reference, candidate, judgement, budget, beside=beside)
        if judgement.verdict != "drift" or budget < 1:
            return start
        compared = (table if table is not None else Comparisons()).of(reference, candidate)
        found = compared.walk or walk(compared.pair)  # data may differ without a probe
        return replace(start, pending_mismatches=found.mismatches)

    @classmethod
    def of_traces(
        cls,
        reference: LoadedRecord,
        candidate: LoadedRecord,
        judgement: Judgement,
        tried: tuple[Statement, ...],
        **given: Any,
    ) -> Confirmation | None:
        """Return the tests of two traces of a window; `None` if the traces agree.

        The candidate's trace is its unchanged rerun. `tried` has the experiments that led to the window.
        """
        mismatches = walk(Pair(reference, candidate)).mismatches
        if not mismatches:
            return None
        start = cls(reference, candidate, judgement, pending_mismatches=mismatches, **given)
        return start._steady(candidate, tried)

    def next(self) -> Request | None:
        """Return the next experiment; `None` at the end or without budget left."""
        if not self.pending_mismatches or self.spent >= self.budget or (self.rerun is not None and not self.ways):
            return None
        if self.rerun is None:
            # A difference of portable bits shows in nothing else.
            has_leg = any(mismatch.basis == "portable" for mismatch in self.pending_mismatches)
            text = "control experiment: unchanged rerun"
            return self._request("candidate", text, self.probe_steps(), portable=has_leg)
        lacking = next((each.way for each in self.kept if each.lacks_capture), None)
        if lacking is not None:
            return self._capture(lacking)
        return self._tested(self.ways[0])

    def absorb(self, request: Request, record: LoadedRecord | None, why: Statement = NO_RECORD) -> Confirmation:
        """Evaluate an experiment's record; `None` means lost, for the reason `why`.

        A record that does not answer the request is lost, too.
        """
        spent = replace(self, spent=self.spent + 1)
        if record is not None and (problem := unanswered(request, record, self.window)):
            record, why = None, problem
        if record is None:
            return spent._lost(request, why)
        if record.record.exit.status != "completed":
            return spent._failed(request, record.record.exit.message)
        if self.rerun is None:
            return spent._reran(record)
        return spent._prepared(record) if request.runs_on == "reference" else spent._restored(record, self.rerun)

    def _prepared(self, record: LoadedRecord) -> Confirmation:
        """Keep the reference's record for the candidate's next experiment."""
        for place, each in enumerate(self.kept):
            if each.lacks_capture:
                captured = replace(each, captured=record.record.record_id)
                return replace(self, kept=(*self.kept[:place], captured, *self.kept[place + 1 :]))
        if self.ways[0].method == "exact":
            return replace(self, exact=record)
        return replace(self, captured=record.record.record_id)

    def _restored(self, record: LoadedRecord, rerun: LoadedRecord) -> Confirmation:
        """Evaluate the candidate's run with the suspect's value restored."""
        way, mismatch = self.ways[0], self.pending_mismatches[0]
        rounding = ("fp64",) if self.in_fp64 is not None else ()
        known = frozenset(other.suspicions[0].code for other in self.pending_mismatches[1:])
        if self.exact is not None:
            before = Pair(self.reference, self.candidate)
            after = Pair(self.exact, record, rounding=("fp64",), noise=before.rounding_only)
            outcome = agree_exactly(mismatch, before, after, known)
            return replace(self, in_fp64=replace(after, scale=outcome.scale))._learn(outcome)
        ways = (*(each.way for each in self.kept), way)
        exact = self.in_fp64
        reference, before_it = (exact.reference, exact.candidate) if exact is not None else (self.reference, rerun)
        outcome = check_restored(
            reference, before_it, record, mismatch=mismatch, ways=ways, known=known, rounding=rounding,
            in_fp64=exact,
        )  # fmt: skip
        return self._learn(outcome)

    def _lost(self, request: Request, why: Statement) -> Confirmation:
        """Repeat a lost experiment once, without charging the budget."""
        if self.lost < limits.MOST_LOST:
            return replace(self, budget=self.budget + 1, lost=self.lost + 1)
        return self._failed(request, why)

    def _failed(self, request: Request, why: Statement) -> Confirmation:
        """Record a failed experiment, which refutes nothing."""
        tried = (*self.tried, fact("experiment.failed", suspect=request.experiment.suspect, why=why))
        if self.rerun is None or len(self.ways) < 2 or any(each.lacks_capture for each in self.kept):
            return replace(self, tried=tried, budget=self.spent)
        return replace(self, tried=tried, ways=self.ways[1:], captured="", exact=None)._settled()

    def _reran(self, record: LoadedRecord) -> Confirmation:
        """Evaluate the unchanged rerun: confirm or exclude `nondeterminism`."""
        steps = len(record.record.evidence.probe.steps) if record.record.evidence.probe else 0
        parting = disagreement(self.candidate, record, steps)
        kernels = rounds_differently(self.candidate.record, record.record, "probe") if parting is not None else ()
        if kernels:  # such as another number of processes: no unchanged rerun
            tried = (*self.tried, fact("rerun.different-machine", difference=kernels[0]))
            return replace(self, tried=tried, budget=self.spent)
        if parting is not None:
            return self._unsteady(record, parting)
        return self._steady(record, (fact("rerun.equal-bits"),))

    def _steady(self, rerun: LoadedRecord, tried: tuple[Statement, ...]) -> Confirmation:
        """Start the tests of a candidate that agrees with its rerun."""
        pending_mismatches = tuple(without("nondeterminism", mismatch) for mismatch in self.pending_mismatches)
        return replace(self, rerun=rerun, pending_mismatches=pending_mismatches, tried=tried)._opened()

    def _unsteady(self, record: LoadedRecord, parting: Mismatch) -> Confirmation:
        # Values that vary by chance may agree at some steps: no mismatch of that rung is a separate cause.
        # A portable leg that did not repeat itself is the same finding again.
        rest = tuple(
            mismatch
            for mismatch in self.pending_mismatches
            if position(mismatch) < position(parting)
            and mismatch.rung != parting.rung
            and mismatch.suspicions[0].code != "device"
        )
        return replace(
            self, rerun=record, settled=Attribution().settled(unsteady(parting)), pending_mismatches=rest
        )._opened()

    def _opened(self) -> Confirmation:
        """Start with the first pending mismatch."""
        if not self.pending_mismatches:
            return self
        wider = self._reaching(self.pending_mismatches[0])
        return replace(wider, suspicions=wider.pending_mismatches[0].suspicions)._suspected()

    def _reaching(self, mismatch: Mismatch) -> Confirmation:
        """Extend the restored values to a mismatch at a later step."""
        probe, reach = self.reference.record.evidence.probe, self._reach()
        if probe is None or reach is None:
            return self
        last = len(probe.steps)
        shown = last if mismatch.rung == "evaluation" else (mismatch.at.step or 0) + 1
        if shown <= reach:
            return self
        kept = tuple(each.reaching(probe.taps, steps_of(mismatch, last)) for each in self.kept)
        trained = self._trained()
        return replace(
            self, kept=tuple(replace(each, way=only_trained(each.way, trained, self.reference)) for each in kept)
        )

    def _suspected(self) -> Confirmation:
        """Test the first suspicion; without suspicions left, end unattributed."""
        fresh = replace(self, captured="", exact=None)
        if not self.suspicions:
            return fresh._unattributed()
        mismatch, suspicion = self.pending_mismatches[0], self.suspicions[0]
        reach = self._reach()
        ways = interventions(mismatch, suspicion, self.reference, self._trained())
        if self.in_fp64 is not None:  # fp64 leaves no rounding and no number format to test
            ways = tuple(way for way in ways if way.method != "exact")
        if reach is not None:
            ways = tuple(replace(way, steps=min(way.steps, reach)) for way in ways)
        return replace(fresh, ways=ways)._settled()

    def _settled(self) -> Confirmation:
        """Skip interventions that need no experiment, and suspicions without any left."""
        if not self.ways:
            if not self.suspicions:
                return self
            return replace(self, suspicions=self.suspicions[1:])._suspected()
        if self.ways[0].method != "observed":
            return self
        shows = self.rerun is not None and self._reproduced(self.rerun)
        text = fact("rerun.same-difference") if shows else fact("rerun.no-difference")
        return self._learn(RestoredOutcome(restored=shows, text=text))

    def _reproduced(self, rerun: LoadedRecord) -> bool:
        mismatch, pair = self.pending_mismatches[0], Pair(self.reference, rerun, imposed=frozenset({"evaluation"}))
        if mismatch.basis == "proven":
            return True
        again = (portable(pair),) if mismatch.basis == "portable" else walk(pair).mismatches
        return any(other is not None and other.rung == mismatch.rung and other.at == mismatch.at for other in again)

    def _learn(self, outcome: RestoredOutcome) -> Confirmation:
        way = self.ways[0]
        tried = (*self.tried, fact("experiment.result", what=way.description, result=outcome.text))
        learned = replace(self, tried=tried, exact=None)
        if way.method == "exact" and not outcome.restored:
            learned = replace(learned, in_fp64=None)
        if outcome.restored:
            return learned._confirmed(way, outcome)
        return replace(learned, ways=self.ways[1:], captured="")._settled()

    def _confirmed(self, way: Intervention, outcome: RestoredOutcome) -> Confirmation:
        mismatch = self.pending_mismatches[0]
        cause = cause_of(mismatch, self._suspects(), self.suspicions[0]).replace(sure="confirmed", tried=self.tried)
        known = {other.suspicions[0].code for other in self.pending_mismatches}
        left = (each for each in outcome.left if cause.code != "gradient" or not is_trace_of_gradient(each))
        hidden = tuple(with_kernel_last(without("nondeterminism", other)) for other in left)
        hidden = tuple(other for other in hidden if other.suspicions[0].code not in known)
        kept = (*self.kept, Kept(way, self.captured)) if way.method == "replay" else self.kept
        pending_mismatches = tuple(sorted((*self.pending_mismatches[1:], *hidden), key=position))
        is_trace = cause.code == "kernel" and bool(hidden) and is_same_place(mismatch, hidden[0])
        settled = self.settled if is_trace else self.settled.confirmed(cause, self.suspicions[0].names)
        learned = replace(
            self, settled=settled, pending_mismatches=pending_mismatches, kept=kept, tried=(), ways=(), suspicions=(),
        )  # fmt: skip
        # A value that cannot stay restored hides later differences: later causes keep their certainty.
        return learned._opened() if way.method in ("replay", "exact") else replace(learned, budget=self.spent)

    def _unattributed(self) -> Confirmation:
        """End the tests of a mismatch that no experiment restored."""
        mismatch = self.pending_mismatches[0]
        name = still_likely if mismatch.is_certain else unattributed
        settled = self.settled.settled(name(mismatch, self._suspects(), self.tried))
        pending_mismatches = self.pending_mismatches[1:]
        return replace(
            self,
            settled=settled,
            pending_mismatches=pending_mismatches,
            tried=(),
            ways=(),
            suspicions=(),
            budget=self.spent,
        )

    @property
    def judgement(self) -> Judgement:
        """Return the judgement with its causes as certain as the experiments show."""
        causes = (*self.settled.causes, *self._open())
        if not causes:
            return self.base
        codes = {cause.code for cause in causes}
        others = tuple(cause for cause in self.beside if cause.code not in codes)
        return self.base.replace(causes=[cause.model_dump() for cause in (*map(self._placed, causes), *others)])

    def _placed(self, cause: Cause) -> Cause:
        """Return a cause with the first step of its window, from which its steps are counted."""
        if self.window is None:
            return cause
        counted = fact("curve.counted-from", step=self.window.first) if self.window.first else ""
        return cause.replace(why=fact("curve.cause", counted=counted, why=cause.why))

    def _open(self) -> Iterator[Cause]:
        """Yield the causes that are not fully tested, with their former certainty."""
        suspects = self.base.suspects
        for place, mismatch in enumerate(self.pending_mismatches):
            first = self.suspicions[0] if place == 0 and self.suspicions else mismatch.suspicions[0]
            cause = cause_of(mismatch, suspects, first)
            yield cause.replace(tried=self.tried) if place == 0 and self.tried else cause

    def probe_steps(self) -> int:
        """Return the whole probe's number of steps: chance may agree over a few."""
        return len(self.reference.record.evidence.probe.steps) if self.reference.record.evidence.probe else 1

    def _reach(self) -> int | None:
        """Return the number of steps covered by restored captures, if any."""
        return min((each.way.steps for each in self.kept if each.way.kind), default=None)

    def _trained(self) -> frozenset[str]:
        """Return the parameters whose gradients both records contain."""
        probes = (self.reference.record.evidence.probe, self.candidate.record.evidence.probe)
        names = [{tap.name for tap in probe.taps if tap.stage == "gradient"} for probe in probes if probe]
        return frozenset[str]().union(*names).intersection(*names)

    def _suspects(self) -> tuple[str, ...]:
        return differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)

    def _capture(self, way: Intervention) -> Request:
        return self._request(
            "reference",
            f"capture of {way.description}",
            way.steps,
            captures=way.captures,
        )

    def _tested(self, way: Intervention) -> Request:
        """Return the next experiment that restores the suspect's value."""
        if way.method == "exact":
            side: Literal["reference", "candidate"] = "candidate" if self.exact else "reference"
            return self._request(side, way.description, way.steps, precision="fp64")
        if way.captures and not self.captured:
            return self._capture(way)
        kept = (*self.kept, Kept(way, self.captured))
        description = " and ".join(each.way.description for each in kept)
        return self._request("candidate", description, way.steps, **_imposed(kept, way.steps))

    def _request(
        self, side: Literal["reference", "candidate"], description: str, steps: int, **parts: object
    ) -> Request:
        sources = parts.pop("sources", ())
        if self.in_fp64 is not None:
            parts.setdefault("precision", "fp64")
        if self.window is not None:
            first = self.window.first
            parts |= {"part": "learn", "trace": first, "portable": False}
            steps += first
        name = experiment_name(self.subject or self.candidate.record.record_id, self.spent)
        experiment = Experiment(experiment_id=name, suspect=description, steps=steps, **parts)
        return Request(side, experiment, sources)  # type: ignore[arg-type]


def _imposed(kept: tuple[Kept, ...], steps: int) -> dict[str, object]:
    """Return replays and tensor sources of the suspects restored within `steps`."""
    return {
        "replays": tuple(replay for each in kept for replay in each.replays(steps)),
        "sources": tuple({source.key: source for each in kept for source in each.sources()}.values()),
    }
