"""State of the tests of one drift, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from plumbline.judge.attribution import Attribution
from plumbline.judge.comparison import cause_of
from plumbline.judge.curve_trace import Window
from plumbline.judge.intervention import Intervention, Kept
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.own_evaluation import OwnEvaluation
from plumbline.judge.pair import Pair
from plumbline.judge.suspects import differences
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement

__all__ = ["ConfirmationState"]


@dataclass(frozen=True)
class ConfirmationState:
    """Mismatches to explain, experiments so far, and causes that they settled."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    most: int
    """The budget of the start; `budget` ends the tests of causes earlier."""
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
    own: OwnEvaluation = field(default_factory=OwnEvaluation)
    window: Window | None = None
    """Steps of the learning curve that both records trace; `None` is the probe."""
    subject: str = ""
    """Record of the training whose window is tested, by which its experiments are named; empty is the candidate's."""
    beside: tuple[Cause, ...] = ()
    """Causes that no experiment of these tests is about."""

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
        return min((each.way.steps for each in self.kept if each.way.kinds), default=None)

    def _trained(self) -> frozenset[str]:
        """Return the parameters whose gradients both records contain."""
        probes = (self.reference.record.evidence.probe, self.candidate.record.evidence.probe)
        names = [{tap.name for tap in probe.taps if tap.stage == "gradient"} for probe in probes if probe]
        return frozenset[str]().union(*names).intersection(*names)

    def _suspects(self) -> tuple[str, ...]:
        return differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)
