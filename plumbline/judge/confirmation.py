"""Value of one drift's experiments: what was asked, tried and settled so far. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from plumbline.judge.comparison import cause_of
from plumbline.judge.consensus import Doubt, exonerate
from plumbline.judge.intervention import Intervention, Source
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.digest import bounded_name
from plumbline.schema.experiment import Experiment
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement

Side = Literal["reference", "candidate"]
State = Literal["rerun", "test", "reference", "ended"]


@dataclass(frozen=True, slots=True)
class Request:
    """Request for one experiment: its platform, settings and required record parts."""

    runs_on: Side
    experiment: Experiment
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class Confirmation:
    """Immutable state of one drift's experiments; each answer gives a new value."""

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
        return probe.num_steps if probe else 1

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

    def _open(self) -> Iterator[Cause]:
        """Yield the causes of the mismatches that still await tests."""
        for place, mismatch in enumerate(self.pending):
            cause = self.cause(mismatch, self.tests[0][0] if place == 0 and self.tests else None)
            yield cause.replace(tried=self.tried) if place == 0 and self.tried else cause
