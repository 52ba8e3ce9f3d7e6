"""Confirmation by experiment: a pure state machine that asks for reruns and learns from what they give.

First an unchanged rerun: does the candidate agree with itself? Then, suspicion by suspicion, the probe's first steps
with only the suspect put back. The evidence snaps back: confirmed. It does not: the next suspicion; after the last
one the cause is `unattributed`, with all that was tried. Whoever holds a Confirmation runs its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from plumbline.digest import bounded_name
from plumbline.judge.attribution import Attribution, still_likely, unattributed, unsteady
from plumbline.judge.comparison import cause_of
from plumbline.judge.experiments import Intervention, Kept, Source, forward_of, interventions, only_trained
from plumbline.judge.ladder import position, walk
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.restored import Outcome, agree_exactly, check_restored, disagreement, located
from plumbline.judge.suspects import differences
from plumbline.records import LoadedRecord
from plumbline.schema.experiment import Experiment
from plumbline.schema.verdict import Cause, Judgement

__all__ = ["Confirmation", "Request"]

_MOST_KINDS = 3
_TO_WIDEN = 2
"""Experiments of a wider imposition: the reference's capture, and the candidate with it."""
_MOST_LOST = 1
"""How many experiments of one drift that infrastructure has lost are run once more."""


@dataclass(frozen=True, slots=True)
class Request:
    """One experiment to be run, on whose platform, and the parts of records that its bundle needs."""

    runs_on: Literal["reference", "candidate"]
    experiment: Experiment
    sources: tuple[Source, ...] = ()


def _imposed(kept: tuple[Kept, ...], steps: int) -> dict[str, object]:
    """What an experiment of so many steps needs to impose everything that is put back."""
    return {
        "replays": tuple(found for each in kept for found in each.replays(steps)),
        "sources": tuple({found.key: found for each in kept for found in each.sources()}.values()),
    }


def _with_kernel_last(one: Mismatch) -> Mismatch:
    """Return a mismatch that a confirmed cause had hidden: another kernel beside it is the least likely reason."""
    kernel = tuple(each for each in one.suspicions if each.code == "kernel")
    others = tuple(each for each in one.suspicions if each.code != "kernel")
    return replace(one, suspicions=(*others, *kernel))


@dataclass(frozen=True)
class Confirmation:
    """Where the testing of one drift stands. Every step gives a new one."""

    reference: LoadedRecord
    candidate: LoadedRecord
    base: Judgement
    budget: int
    pending_mismatches: tuple[Mismatch, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    """Of the first break of the agenda, those not refuted yet."""
    ways: tuple[Intervention, ...] = ()
    """To put the first suspicion's suspect back, those not tried yet."""
    rerun: LoadedRecord | None = None
    captured: str = ""
    exact: LoadedRecord | None = None
    kept: tuple[Kept, ...] = ()
    tried: tuple[str, ...] = ()
    settled: Attribution = field(default_factory=Attribution)
    spent: int = 0
    lost: int = 0

    @classmethod
    def begin(cls, reference: LoadedRecord, candidate: LoadedRecord, judgement: Judgement, budget: int) -> Confirmation:
        """Set out to confirm a judgement's causes with at most `budget` reruns."""
        start = cls(reference, candidate, judgement, budget)
        if judgement.verdict != "drift" or budget < 1:
            return start
        mismatches = walk(Pair(reference, candidate)).mismatches
        return replace(start, pending_mismatches=mismatches)

    def next(self) -> Request | None:
        """The experiment to run now; `None` once all is said, or the budget is spent."""
        if not self.pending_mismatches or self.spent >= self.budget or (self.rerun is not None and not self.ways):
            return None
        if self.rerun is None:
            return self._request("candidate", "nothing: does it agree with itself?", self._self_steps())
        way = self.ways[0]
        if way.method in ("exact", "locate"):
            side: Literal["reference", "candidate"] = "candidate" if self.exact else "reference"
            if way.method == "exact":
                return self._request(side, way.words, way.steps, precision="fp64")
            return self._request(side, way.words, way.steps, **(_imposed(self.kept, way.steps) if self.exact else {}))
        if way.captures and not self.captured:
            return self._request("reference", f"capture of {way.words}", way.steps, captures=way.captures)
        kept = (*self.kept, Kept(way, self.captured))
        words = " and ".join(each.way.words for each in kept)
        return self._request("candidate", words, way.steps, **_imposed(kept, way.steps))

    def absorb(self, request: Request, record: LoadedRecord | None, why: str = "no record came back") -> Confirmation:
        """Learn from an experiment's record; `None` if nothing came back, and `why`."""
        spent = replace(self, spent=self.spent + 1)
        if record is None:
            return spent._lost(request, why)
        if record.record.exit.status != "completed":
            return spent._failed(request, record.record.exit.message)
        if self.rerun is None:
            return spent._reran(record)
        return spent._prepared(record) if request.runs_on == "reference" else spent._put_back(record, self.rerun)

    @property
    def judgement(self) -> Judgement:
        """The judgement with its causes as sure as the experiments so far make them."""
        return self.settled.judgement(self.base, tuple(self._open()))

    def _open(self) -> Iterator[Cause]:
        """The causes not tested to the end, as likely as before."""
        suspects = self.base.suspects
        for place, one in enumerate(self.pending_mismatches):
            first = self.suspicions[0] if place == 0 and self.suspicions else one.suspicions[0]
            cause = cause_of(one, suspects, first)
            yield cause.replace(tried=self.tried) if place == 0 and self.tried else cause

    def _self_steps(self) -> int:
        """The whole probe: what is decided by chance at each step agrees with itself over a few of them."""
        return len(self.reference.record.evidence.probe.steps) if self.reference.record.evidence.probe else 1

    def _request(self, side: Literal["reference", "candidate"], words: str, steps: int, **parts: object) -> Request:
        sources = parts.pop("sources", ())
        name = bounded_name(f"{self.candidate.record.record_id}-x{self.spent + 1}")
        experiment = Experiment(experiment_id=name, suspect=words, steps=steps, **parts)
        return Request(side, experiment, sources)  # type: ignore[arg-type]

    def _prepared(self, record: LoadedRecord) -> Confirmation:
        """What the reference gave for the candidate's next experiment."""
        if self.ways[0].method in ("exact", "locate"):
            return replace(self, exact=record)
        return replace(self, captured=record.record.record_id)

    def _put_back(self, record: LoadedRecord, rerun: LoadedRecord) -> Confirmation:
        """What the candidate gave with the suspect put back."""
        way, one = self.ways[0], self.pending_mismatches[0]
        if self.exact is not None and way.method == "locate":
            return self._located(located(self.exact, record, way.steps, tuple(each.way for each in self.kept)))
        known = frozenset(other.suspicions[0].code for other in self.pending_mismatches[1:])
        if self.exact is not None:
            before, after = Pair(self.reference, self.candidate), Pair(self.exact, record, rounding=("fp64",))
            return self._learn(agree_exactly(one, before, after, known))
        ways = (*(each.way for each in self.kept), way)
        return self._learn(check_restored(self.reference, rerun, record, one=one, ways=ways, known=known))

    def _lost(self, request: Request, why: str) -> Confirmation:
        """A night's bad moment says nothing of the cause and takes nothing of the budget; the same one again, once."""
        if self.lost < _MOST_LOST:
            return replace(self, budget=self.budget + 1, lost=self.lost + 1)
        return self._failed(request, why)

    def _failed(self, request: Request, why: str) -> Confirmation:
        """An experiment that could not be run refutes nothing; the cause stays as likely as it was."""
        tried = (*self.tried, f"put back {request.experiment.suspect}: could not be run: {why}")
        if self.rerun is None or len(self.ways) < 2:
            return replace(self, tried=tried, budget=self.spent)
        return replace(self, tried=tried, ways=self.ways[1:], captured="", exact=None)._settled()

    def _reran(self, record: LoadedRecord) -> Confirmation:
        """What the unchanged rerun says: it disagrees with itself, or `nondeterminism` is out."""
        steps = len(record.record.evidence.probe.steps) if record.record.evidence.probe else 0
        parting = disagreement(self.candidate, record, steps)
        if parting is not None:
            return self._unsteady(record, parting)
        pending_mismatches = tuple(
            replace(one, suspicions=tuple(s for s in one.suspicions if s.code != "nondeterminism"))
            for one in self.pending_mismatches
        )
        tried = ("an unchanged rerun: equal to the bit",)
        return replace(self, rerun=record, pending_mismatches=pending_mismatches, tried=tried)._opened()

    def _unsteady(self, record: LoadedRecord, parting: Mismatch) -> Confirmation:
        # What varies at a rung may agree at some steps by chance: no break of that rung is a cause of its own.
        rest = tuple(
            one for one in self.pending_mismatches if position(one) < position(parting) and one.rung != parting.rung
        )
        return replace(
            self, rerun=record, settled=Attribution().settled(unsteady(parting)), pending_mismatches=rest
        )._opened()

    def _opened(self) -> Confirmation:
        """Turn to the first break of the agenda."""
        if not self.pending_mismatches:
            return self
        reach = self._reach()
        if reach is not None and (self.pending_mismatches[0].at.step or 0) >= reach:
            # What was captured does not reach this far: later causes stay as likely as they are.
            return replace(self, budget=self.spent)
        return replace(self, suspicions=self.pending_mismatches[0].suspicions)._suspected()

    def _reach(self) -> int | None:
        """How many steps the captures that stay put back cover; `None` without one."""
        return min((each.way.steps for each in self.kept if each.way.kinds), default=None)

    def _suspected(self) -> Confirmation:
        """Turn to the first suspicion; without one left, the break is unattributed and testing ends."""
        fresh = replace(self, captured="", exact=None)
        if not self.suspicions:
            return fresh._unattributed()
        one, suspicion = self.pending_mismatches[0], self.suspicions[0]
        reach = self._reach()
        ways = interventions(one, suspicion, self.reference, self._trained())
        if reach is not None:
            ways = tuple(replace(way, steps=min(way.steps, reach)) for way in ways)
        return replace(fresh, ways=ways)._settled()

    def _settled(self) -> Confirmation:
        """Go past ways that need no experiment, and suspicions without a way left."""
        if not self.ways:
            if not self.suspicions:
                return self
            return replace(self, suspicions=self.suspicions[1:])._suspected()
        if self.ways[0].method != "observed":
            return self
        shows = self.rerun is not None and self._reproduced(self.rerun)
        words = "the rerun shows the same difference" if shows else "the rerun does not show it"
        return self._learn(Outcome(restored=shows, words=words))

    def _reproduced(self, rerun: LoadedRecord) -> bool:
        one = self.pending_mismatches[0]
        again = walk(Pair(self.reference, rerun, put_back=frozenset({"evaluation"}))).mismatches
        return any(other.rung == one.rung and other.at == one.at for other in again)

    def _learn(self, outcome: Outcome) -> Confirmation:
        way, one = self.ways[0], self.pending_mismatches[0]
        tried = (*self.tried, f"put back {way.words}: {outcome.words}")
        learned = replace(self, tried=tried, exact=None)
        if outcome.restored:
            return learned._confirmed(way, outcome)
        if outcome.further and outcome.further not in way.kinds and self._may_widen(way):
            probe = self.reference.record.evidence.probe
            wider = forward_of(probe.taps if probe else (), one.at.step or 0, (*way.kinds, outcome.further))
            wider = only_trained(wider, self._trained(), self.reference)
            return replace(learned, ways=(wider, *self.ways[1:]), captured="")
        return replace(learned, ways=self.ways[1:], captured="")._settled()

    def _may_widen(self, way: Intervention) -> bool:
        """Return whether imposing one kind of module more leaves an experiment for every other suspicion."""
        left_over = self.budget - self.spent - _TO_WIDEN
        return len(way.kinds) < _MOST_KINDS and left_over >= len(self.suspicions) - 1

    def _located(self, found: Mismatch | None) -> Confirmation:
        """Go on with the module that was found to be off, or without one."""
        if found is None:
            return self._learn(Outcome(restored=False, words="no module is off by more than rounding"))
        tried = (*self.tried, f"both sides tapped at step {found.at.step}: the first module off is {found.at.at}")
        steady = tuple(one for one in found.suspicions if one.code != "nondeterminism")
        pending_mismatches = (replace(found, suspicions=steady), *self.pending_mismatches[1:])
        return replace(self, pending_mismatches=pending_mismatches, tried=tried, exact=None)._opened()

    def _confirmed(self, way: Intervention, outcome: Outcome) -> Confirmation:
        one = self.pending_mismatches[0]
        cause = cause_of(one, self._suspects(), self.suspicions[0]).replace(sure="confirmed", tried=self.tried)
        known = {other.suspicions[0].code for other in self.pending_mismatches}
        hidden = tuple(_with_kernel_last(other) for other in outcome.left)
        hidden = tuple(other for other in hidden if other.suspicions[0].code not in known)
        kept = (*self.kept, Kept(way, self.captured)) if way.method == "replay" else self.kept
        pending_mismatches = tuple(sorted((*self.pending_mismatches[1:], *hidden), key=position))
        settled = self.settled.confirmed(cause, self.suspicions[0].names)
        learned = replace(
            self, settled=settled, pending_mismatches=pending_mismatches, kept=kept, tried=(), ways=(), suspicions=()
        )
        # What cannot stay put back hides what lies below it: later causes stay as likely as they are.
        return learned._opened() if way.method == "replay" else replace(learned, budget=self.spent)

    def _unattributed(self) -> Confirmation:
        """End the tests of a mismatch that no experiment restored."""
        name = still_likely if self.pending_mismatches[0].is_first_bit else unattributed
        settled = self.settled.settled(name(self.pending_mismatches[0], self._suspects(), self.tried))
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

    def _trained(self) -> frozenset[str]:
        """The parameters whose gradients both records hold."""
        probes = (self.reference.record.evidence.probe, self.candidate.record.evidence.probe)
        names = [{tap.name for tap in probe.taps if tap.stage == "gradient"} for probe in probes if probe]
        return frozenset[str]().union(*names).intersection(*names)

    def _suspects(self) -> tuple[str, ...]:
        return differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)
