"""State of the tests of one drift: causes that are settled, and the experiment that is needed next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from plumbline.judge.comparison import cause_of
from plumbline.judge.curves import Window, trace_problem
from plumbline.judge.intervention import Intervention, Kept, Source
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.own_evaluation import OwnEvaluation, may_hide
from plumbline.judge.pair import Pair
from plumbline.judge.suspects import differences
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.digest import bounded_name
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.experiment import Experiment, Replay
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause, Judgement

SPEED = frozenset({"loader", "transfer", "throttling", "slow-device", "contention", "software"})
"""Causes of a drop in throughput."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Settled causes, in the order in which they were settled."""

    causes: tuple[Cause, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    """The modules or parameters of each of these causes."""

    def confirmed(self, cause: Cause, names: tuple[str, ...]) -> Attribution:
        """Add a cause that an experiment confirmed at these modules or parameters."""
        return self._without_consequences(cause.code, names).settled(cause, names)

    def settled(self, cause: Cause, names: tuple[str, ...] = ()) -> Attribution:
        """Append a cause."""
        return replace(self, causes=(*self.causes, cause), places=(*self.places, names))

    def _without_consequences(self, code: str, names: tuple[str, ...]) -> Attribution:
        """Drop gradient causes inside a module whose operator differs."""
        if code != "operator" or not names:
            return self
        prefixes = tuple(f"{name}." for name in names)
        left = [
            (cause, place)
            for cause, place in zip(self.causes, self.places, strict=True)
            if cause.code != "gradient" or not place or not all(name.startswith(prefixes) for name in place)
        ]
        return Attribution(tuple(cause for cause, _ in left), tuple(place for _, place in left))


def unsteady(parting: Mismatch) -> Cause:
    """Return the cause of a candidate that differs from its unchanged rerun."""
    place = (
        fact("place.at-step", stage=parting.at.stage, step=parting.at.step)
        if parting.at.step is not None
        else parting.at.stage
    )
    return Cause(
        code="nondeterminism",
        sure="confirmed",
        why=fact("attribution.unsteady", place=place, at=parting.at.at),
        evidence=tuple(finding.metric for finding in parting.findings),
        tried=(fact("rerun.different-bits"),),
    )


_REFUTED_FOR_GOOD = frozenset({"kernel", "precision"})
"""Causes that are excluded where a difference stays the same in fp64: the difference is not rounding."""


def still_likely(mismatch: Mismatch, suspects: tuple[str, ...], tried: tuple[Statement, ...]) -> Cause:
    """Return the likeliest cause of a first different bit, native or portable, that no experiment restored.

    The place of the cause is certain there. A value that could not be restored exactly does not clear its suspect.
    """
    possible = [each for each in mismatch.suspicions if each.code not in _REFUTED_FOR_GOOD]
    return cause_of(mismatch, suspects, (possible or list(mismatch.suspicions))[0]).replace(tried=tried)


def unattributed(mismatch: Mismatch, suspects: tuple[str, ...], tried: tuple[Statement, ...]) -> Cause:
    """Return the cause of a mismatch that no restored value explains."""
    return cause_of(mismatch, suspects).replace(
        code="unattributed",
        sure="unattributed",
        why=fact("attribution.unattributed", stage=mismatch.at.stage),
        tried=tried,
    )


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


NO_RECORD = fact("experiment.no-record")
_NAMES = {"experiment_id": "x", "suspect": ""}
"""Fields of an experiment that do not change what it runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """One experiment to run, its platform, and the record parts that it reads."""

    runs_on: Literal["reference", "candidate"]
    experiment: Experiment
    sources: tuple[Source, ...] = ()


def unanswered(request: Request, record: LoadedRecord, window: Window | None = None) -> Statement:
    """Return why a record does not answer a request; empty if it does, or if its training failed.

    A record without evidence differs from nothing: it would confirm every suspicion. The record's name is bound by its
    order; what it ran is compared here. In a `window` of the learning curve the evidence is that of a trace.
    """
    experiment = record.record.experiment
    if experiment is None or experiment.replace(**_NAMES) != request.experiment.replace(**_NAMES):
        return fact("experiment.different")
    if record.record.exit.status != "completed":
        return ""
    try:
        missing = next((finding.detail for finding in missing_evidence(record, "experiment")), "")
        traced = Window(window.first, request.experiment.steps) if window is not None else None
        return missing or (trace_problem(record, traced) if traced is not None else "")
    except InvalidInputError as error:
        return fact("experiment.unreadable", error=error)


def next_request(state: ConfirmationState) -> Request | None:
    """Return the next experiment; `None` at the end or without budget left."""
    return next_of_causes(state) or _next_of_evaluation(state)


def next_of_causes(state: ConfirmationState) -> Request | None:
    """Return the next experiment on a mismatch."""
    if not state.pending_mismatches or state.spent >= state.budget or (state.rerun is not None and not state.ways):
        return None
    if state.rerun is None:
        # A difference of portable bits shows in nothing else.
        has_leg = any(mismatch.basis == "portable" for mismatch in state.pending_mismatches)
        text = "control experiment: unchanged rerun"
        return _request(state, "candidate", text, state.probe_steps(), portable=has_leg)
    lacking = next((each.way for each in state.kept if each.lacks_capture), None)
    if lacking is not None:
        return _capture(state, lacking)
    return _tested(state, state.ways[0])


def _next_of_evaluation(state: ConfirmationState) -> Request | None:
    """Return the next run that evaluates by the definition, where the settled causes may hide a fault of it."""
    causes = state.settled.causes
    if state.own.is_closed or state.spent >= state.most or state.pending_mismatches:
        return None
    if any(cause.sure != "confirmed" for cause in causes):
        return None
    if not may_hide(state.reference, state.candidate, [cause.code for cause in causes]):
        return None
    side: Literal["reference", "candidate"] = "reference" if state.own.found else "candidate"
    description = "the evaluation by its definition"
    return _request(state, side, description, state.probe_steps(), replays=(Replay(rung="evaluation"),))


def _capture(state: ConfirmationState, way: Intervention) -> Request:
    return _request(
        state,
        "reference",
        f"capture of {way.description}",
        way.steps,
        captures=way.captures,
    )


def _tested(state: ConfirmationState, way: Intervention) -> Request:
    """Return the next experiment that restores the suspect's value."""
    if way.method in ("exact", "locate"):
        side: Literal["reference", "candidate"] = "candidate" if state.exact else "reference"
        if way.method == "exact":
            return _request(state, side, way.description, way.steps, precision="fp64")
        return _request(
            state, side, way.description, way.steps, **(_imposed(state.kept, way.steps) if state.exact else {})
        )
    if way.captures and not state.captured:
        return _capture(state, way)
    kept = (*state.kept, Kept(way, state.captured))
    description = " and ".join(each.way.description for each in kept)
    return _request(state, "candidate", description, way.steps, **_imposed(kept, way.steps))


def _imposed(kept: tuple[Kept, ...], steps: int) -> dict[str, object]:
    """Return the replays and sources of all restored suspects within `steps`."""
    return {
        "replays": tuple(replay for each in kept for replay in each.replays(steps)),
        "sources": tuple({source.key: source for each in kept for source in each.sources()}.values()),
    }


def _request(
    state: ConfirmationState, side: Literal["reference", "candidate"], description: str, steps: int, **parts: object
) -> Request:
    sources = parts.pop("sources", ())
    if state.in_fp64 is not None:
        parts.setdefault("precision", "fp64")
    if state.window is not None:
        first = state.window.first
        parts |= {"part": "learn", "trace": first, "portable": False}
        steps += first
    name = experiment_name(state.subject or state.candidate.record.record_id, state.spent)
    experiment = Experiment(experiment_id=name, suspect=description, steps=steps, **parts)
    return Request(side, experiment, sources)  # type: ignore[arg-type]


def experiment_name(record_id: str, spent: int) -> str:
    """Return the name of the next experiment on a record, after `spent` of them."""
    return bounded_name(f"{record_id}-x{spent + 1}")
