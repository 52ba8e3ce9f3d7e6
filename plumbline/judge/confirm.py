"""Confirmation by experiment: a pure state machine that requests reruns and evaluates their records.

Its states: the candidate runs again unchanged (`rerun`), which shows whether it agrees with itself. Each suspicion is
tested (`test`, see `suspicions`): the first steps run again with the suspect's value restored to the reference's. If
the difference disappears, the cause is confirmed; if not, the next suspicion is tested. Of a learning curve that no
definition restores, the reference runs again, too (`reference`, see `curves`). After the last test the cause is
`unattributed`, with everything that was tried (`ended`). The caller runs the requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from plumbline.judge import curves, suspicions
from plumbline.judge.attribution import SPEED, unsteady
from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import cause_of
from plumbline.judge.consensus import Doubt, exonerate
from plumbline.judge.curves import Side
from plumbline.judge.intervention import Intervention, Source
from plumbline.judge.mismatches import Mismatch, Suspicion, without
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.restored import disagreement
from plumbline.judge.walk import position, walk
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.digest import bounded_name
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.experiment import Experiment
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement

State = Literal["rerun", "test", "reference", "ended"]

_NO_RECORD = fact("experiment.no-record")
_NAMES = {"experiment_id": "x", "suspect": ""}
"""Fields of an experiment that do not change what it runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request for one experiment: its platform, settings and required record parts."""

    runs_on: Side
    experiment: Experiment
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Confirmation:
    """Immutable state of one drift's experiments; each step returns a new state."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    name: str
    """Record by which the experiments are named."""
    state: State = "ended"
    beside: tuple[Cause, ...] = ()
    """Causes that no experiment is about."""
    pending: tuple[Mismatch, ...] = ()
    tests: tuple[tuple[Suspicion, Intervention], ...] = ()
    """Suspicions of the first pending mismatch that are not refuted yet, with each untried way to test them."""
    curve: int | None = None
    """Number of steps of the learning curve that run again; `None`: the probe does."""
    rerun: LoadedRecord | None = None
    """The unchanged rerun with the candidate's bits; in the state `rerun` a first one without."""
    prepared: LoadedRecord | None = None
    """The reference's record for the candidate's next experiment."""
    in_fp64: Pair | None = None
    """Reference and candidate in fp64, once that removed a cause: later experiments are run and compared in fp64."""
    kept: tuple[Intervention, ...] = ()
    """Restored values that stay while later suspects are tested."""
    tried: tuple[Statement, ...] = ()
    settled: tuple[Cause, ...] = ()
    """Causes that need no further experiment."""
    reference_cause: Cause | None = None
    """Cause in the reference, if its own rerun shows that the reference is the side that differs."""
    spent: int = 0
    lost: int = 0

    @classmethod
    def begin(
        cls,
        reference: LoadedRecord,
        candidate: LoadedRecord,
        judgement: Judgement,
        budget: int,
        table: Comparisons | None = None,
    ) -> Confirmation:
        """Create the initial state, for at most `budget` reruns; `table` caches the comparison of the two records."""
        beside = tuple(cause for cause in judgement.causes if cause.code in SPEED)
        start = cls(reference, candidate, judgement, budget, candidate.record.record_id, beside=beside)
        compared = (table if table is not None else Comparisons()).of(reference, candidate)
        if budget > 0 and (found := curves.separated(judgement, compared.pair)) is not None:
            beside = tuple(cause for cause in judgement.causes if cause.code != found[0].suspicions[0].code)
            return replace(start, state="rerun", pending=found[:1], curve=found[1], beside=beside)
        if judgement.verdict != "drift" or budget < 1:
            return start
        mismatches = (compared.walk or walk(compared.pair)).mismatches  # data may differ without a probe
        return replace(start, state="rerun" if mismatches else "ended", pending=mismatches)

    def next(self) -> Request | None:
        """Return the next experiment; `None` when finished or out of budget."""
        if self.state == "ended" or not self.has_budget:
            return None
        if self.state == "rerun":
            # A difference of portable bits shows in nothing else.
            has_windows = any(mismatch.basis == "portable" for mismatch in self.pending)
            of_curve = " of the learning curve" if self.curve else ""
            text = f"control experiment: unchanged rerun{of_curve}"
            return self.request("candidate", text, self.num_steps, portable=has_windows)
        if self.state == "reference":
            text = "control experiment: unchanged rerun of the reference's learning curve"
            return self.request("reference", text, self.num_steps)
        return suspicions.requested(self)

    def absorb(self, request: Request, record: LoadedRecord | None, why: Statement = _NO_RECORD) -> Confirmation:
        """Update the state with an experiment's record; `None`: lost, see `why`.

        A record that does not answer the request is lost, too. One lost experiment is repeated, without charge.
        """
        spent = replace(self, spent=self.spent + 1)
        if record is not None and (problem := self._unanswered(request, record)):
            record, why = None, problem
        if record is None and self.lost < limits.MOST_LOST:
            return replace(spent, lost=self.lost + 1)
        if record is None or record.record.exit.status != "completed":
            why = why if record is None else record.record.exit.message
            return spent._failed(fact("experiment.failed", suspect=request.experiment.suspect, why=why))
        if self.state == "rerun":
            return spent._reran(record)
        if self.state == "reference" and self.curve is not None:
            return curves.reference_reran(spent, self.curve, record)
        answer = suspicions.prepared if request.runs_on == "reference" else suspicions.restored
        return answer(spent, record)

    @property
    def judgement(self) -> Judgement:
        """Return the judgement, with causes as certain as the experiments show."""
        if self.reference_cause is not None:
            why = fact("doubt.reference-differs", why=self.reference_cause.why)
            return exonerate(self.base, Doubt("inconclusive", why), "").replace(causes=())
        causes = (*self.settled, *self._open())
        if not causes:
            return self.base
        codes = {cause.code for cause in causes}
        others = tuple(cause for cause in self.beside if cause.code not in codes)
        return self.base.replace(causes=[cause.model_dump() for cause in (*causes, *others)])

    @property
    def has_budget(self) -> bool:
        """Return whether the budget allows another experiment."""
        return self.spent - self.lost < self.budget

    @property
    def num_steps(self) -> int:
        """Return the number of steps that run again."""
        if self.curve is not None:
            return self.curve
        probe = self.reference.record.evidence.probe
        return len(probe.steps) if probe else 1

    def ended(self, text: Statement = "") -> Confirmation:
        """Return the final state; `text` says why no more tests follow."""
        return replace(self, state="ended", tried=(*self.tried, text) if text else self.tried)

    def cause(self, mismatch: Mismatch, suspicion: Suspicion | None = None) -> Cause:
        """Convert a suspicion to a cause.

        Of a learning curve, it is the judged one.
        """
        code = (suspicion or mismatch.suspicions[0]).code
        judged = next((cause for cause in self.base.causes if cause.code == code), None) if self.curve else None
        return judged or cause_of(mismatch, self.base.suspects, suspicion)

    def _open(self) -> Iterator[Cause]:
        """Yield the causes of the mismatches that still await tests."""
        for place, mismatch in enumerate(self.pending):
            cause = self.cause(mismatch, self.tests[0][0] if place == 0 and self.tests else None)
            yield cause.replace(tried=self.tried) if place == 0 and self.tried else cause

    def _unanswered(self, request: Request, record: LoadedRecord) -> Statement:
        """Return why a record is no valid result of a request; empty if valid, or if its training failed.

        A record without evidence differs from nothing: it would confirm every suspicion. The order fixes the record's
        name; this method compares the experiment that the record ran with the requested one.
        """
        asked, experiment = request.experiment, record.record.experiment
        if experiment is None or experiment.replace(**_NAMES) != asked.replace(**_NAMES):
            return fact("experiment.different")
        if record.record.exit.status != "completed":
            return ""
        try:
            return next((finding.detail for finding in missing_evidence(record, "experiment")), "")
        except InvalidInputError as error:
            return fact("experiment.unreadable", error=error)

    def _failed(self, text: Statement) -> Confirmation:
        """Record a failed experiment; try another test of the same suspicion, or end."""
        others = [way for suspicion, way in self.tests[1:] if suspicion == self.tests[0][0]]
        if self.state != "test" or not others or any(way.captures for way in self.kept):
            return self.ended(text)
        return suspicions.following(replace(self, tried=(*self.tried, text)))

    def _reran(self, record: LoadedRecord) -> Confirmation:
        """Evaluate the unchanged rerun: confirm or rule out `nondeterminism`."""
        curve, probe = self.curve, record.record.evidence.probe
        parting = None if curve else disagreement(self.candidate, record, len(probe.steps) if probe else 0)
        if curves.has_equal_bits(self.candidate, record, curve) if curve else parting is None:
            beside = curves.repeated(self, record) if curve else self.beside
            return replace(self, beside=beside, tried=(fact("rerun.equal-bits"),)).steady(record, self.pending)
        kernels = rounds_differently(self.candidate.record, record.record, "learn" if curve else "probe")
        if kernels:  # such as another number of processes: no unchanged rerun
            return self.ended(fact("rerun.different-machine", difference=kernels[0]))
        if parting is not None:
            return self._unsteady(record, parting)
        return curves.unsteady_curve(self, curve, record) if curve else self

    def steady(self, rerun: LoadedRecord, mismatches: tuple[Mismatch, ...]) -> Confirmation:
        """Start testing causes for a candidate that its rerun reproduced."""
        pending = tuple(without("nondeterminism", mismatch) for mismatch in mismatches)
        return suspicions.opened(replace(self, rerun=rerun, pending=pending))

    def _unsteady(self, record: LoadedRecord, parting: Mismatch) -> Confirmation:
        # Values that vary by chance may agree at some steps: no mismatch of that rung is a separate cause.
        # A portable window that did not repeat itself is the same finding again.
        rest = tuple(
            mismatch
            for mismatch in self.pending
            if position(mismatch) < position(parting)
            and mismatch.rung != parting.rung
            and mismatch.suspicions[0].code != "device"
        )
        settled = (*self.settled, unsteady(parting))
        return suspicions.opened(replace(self, rerun=record, settled=settled, pending=rest))

    def request(
        self, side: Side, description: str, steps: int, sources: tuple[Source, ...] = (), **parts: Any
    ) -> Request:
        """Build an experiment request for the first probe or curve steps."""
        if self.in_fp64 is not None:
            parts.setdefault("precision", "fp64")
        if self.curve is not None:
            parts |= {"part": "learn", "portable": False}
        name = bounded_name(f"{self.name}-x{self.spent + 1}")
        return Request(side, Experiment(experiment_id=name, suspect=description, steps=steps, **parts), sources)
