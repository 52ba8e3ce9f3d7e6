"""Tests of suspected causes: which value to restore next. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

from plumbline.judge import curves
from plumbline.judge.attribution import still_likely, unattributed
from plumbline.judge.confirmation import Confirmation, Request, Side
from plumbline.judge.experiments import curve_interventions, interventions, steps_of
from plumbline.judge.intervention import Intervention, only_trained
from plumbline.judge.mismatches import (
    Mismatch,
    Suspicion,
    is_same_place,
    is_trace_of_gradient,
    with_kernel_last,
    without,
)
from plumbline.judge.pair import Pair
from plumbline.judge.restored import RestoredOutcome, agree_exactly, check_restored
from plumbline.judge.rungs.windows import window_mismatch
from plumbline.judge.walk import walk
from plumbline.records import LoadedRecord
from plumbline.schema.captured import captured
from plumbline.schema.fact import fact


def opened(state: Confirmation) -> Confirmation:
    """Start testing the first pending mismatch."""
    if not state.pending:
        return state.ended()
    wider = _reaching(state, state.pending[0])
    return _settled(replace(wider, state="test", tests=tuple(_ways(wider)), prepared=None))


def _reaching(state: Confirmation, mismatch: Mismatch) -> Confirmation:
    """Extend already restored values to a mismatch at a later step."""
    probe, reach = state.reference.record.evidence.probe, _reach(state)
    if probe is None or reach is None:
        return state
    last = probe.num_steps
    shown = last if mismatch.stage == "evaluation" else (mismatch.at.step or 0) + 1
    if shown <= reach:
        return state
    trained, kept = _trained(state), (way.reaching(probe.taps, steps_of(mismatch, last)) for way in state.kept)
    return replace(state, kept=tuple(only_trained(way, trained, state.reference) for way in kept))


def _ways(state: Confirmation) -> Iterator[tuple[Suspicion, Intervention]]:
    """Yield each suspected cause with each experiment to test it."""
    mismatch, trained, reach = state.pending[0], _trained(state), _reach(state)
    for suspicion in mismatch.suspicions:
        if state.curve is not None:
            ways = curve_interventions(suspicion, state.num_steps)
        else:
            ways = interventions(mismatch, suspicion, state.reference, trained)
        for way in ways:
            # fp64 leaves no rounding and no number format to test.
            if state.in_fp64 is None or way.method != "exact":
                yield suspicion, replace(way, steps=min(way.steps, reach)) if reach is not None else way


def following(state: Confirmation) -> Confirmation:
    """Return the state with the next test of a suspected cause."""
    return _settled(replace(state, tests=state.tests[1:], prepared=None))


def _settled(state: Confirmation) -> Confirmation:
    """Resolve tests that need no experiment; at the end, finish."""
    if not state.tests:
        return curves.untested(state) if state.curve is not None else _unattributed(state)
    if state.tests[0][1].method != "observed":
        return state
    shows = state.rerun is not None and _reproduced(state, state.rerun)
    text = fact("rerun.same-difference") if shows else fact("rerun.no-difference")
    return _learn(state, RestoredOutcome(restored=shows, text=text))


def _reproduced(state: Confirmation, rerun: LoadedRecord) -> bool:
    mismatch, pair = state.pending[0], Pair(state.reference, rerun, imposed=frozenset({"evaluation"}))
    if mismatch.basis == "proven":
        return True
    has_windows = mismatch.basis == "portable" and not captured(rerun.record.spec)
    again = (window_mismatch(pair, "probe"),) if has_windows else walk(pair).mismatches
    return any(other is not None and other.stage == mismatch.stage and other.at == mismatch.at for other in again)


def prepared(state: Confirmation, record: LoadedRecord) -> Confirmation:
    """Store the reference's record for the candidate's next experiment."""
    (suspicion, way), name = state.tests[0], record.record.record_id
    lacking = next((kept for kept in state.kept if kept.captures), way)
    if not lacking.captures:
        return replace(state, prepared=record)
    kept = tuple(each.captured_in(name) if each is lacking else each for each in state.kept)
    first = (suspicion, way.captured_in(name) if way is lacking else way)
    return replace(state, kept=kept, tests=(first, *state.tests[1:]))


def restored(state: Confirmation, record: LoadedRecord) -> Confirmation:
    """Evaluate the candidate's run with the suspect's value restored."""
    (suspicion, way), mismatch = state.tests[0], state.pending[0]
    if state.curve is not None:
        return _learn(state, curves.defined(state, state.curve, suspicion, record))
    known = frozenset(other.suspicions[0].code for other in state.pending[1:])
    if way.method == "exact" and state.prepared is not None:
        before = Pair(state.reference, state.candidate)
        after = Pair(state.prepared, record, rounding=("fp64",), noise=before.rounding_only)
        outcome = agree_exactly(mismatch, before, after, known)
        in_fp64 = replace(after, scale=outcome.scale) if outcome.restored else None
        return _learn(replace(state, in_fp64=in_fp64), outcome)
    before = state.in_fp64 or Pair(state.reference, state.rerun or state.candidate)
    ways = (*state.kept, way)
    return _learn(state, check_restored(before, record, mismatch=mismatch, ways=ways, known=known))


def _learn(state: Confirmation, outcome: RestoredOutcome) -> Confirmation:
    way = state.tests[0][1]
    tried = (*state.tried, fact("experiment.result", what=way.description, result=outcome.text))
    learned = replace(state, tried=tried)
    return _confirmed(learned, way, outcome) if outcome.restored else following(learned)


def _confirmed(state: Confirmation, way: Intervention, outcome: RestoredOutcome) -> Confirmation:
    mismatch, suspicion = state.pending[0], state.tests[0][0]
    cause = state.cause(mismatch, suspicion).replace(sure="confirmed", tried=state.tried)
    known = {other.suspicions[0].code for other in state.pending}
    left = (each for each in outcome.left if cause.code != "gradient" or not is_trace_of_gradient(each))
    hidden = tuple(with_kernel_last(without("nondeterminism", other)) for other in left)
    hidden = tuple(other for other in hidden if other.suspicions[0].code not in known)
    is_trace = cause.code == "kernel" and bool(hidden) and is_same_place(mismatch, hidden[0])
    learned = replace(
        state,
        settled=state.settled if is_trace else (*state.settled, cause),
        pending=tuple(sorted((*state.pending[1:], *hidden), key=attrgetter("position"))),
        kept=(*state.kept, way) if way.method == "replay" else state.kept,
        tried=(),
        tests=(),
    )
    # A value that cannot stay restored hides later differences: later causes keep their certainty.
    return opened(learned) if way.method != "observed" else learned.ended()


def _unattributed(state: Confirmation) -> Confirmation:
    """End the tests of a mismatch that no restored value removed."""
    mismatch = state.pending[0]
    name = still_likely if mismatch.is_certain else unattributed
    cause = name(mismatch, state.base.suspects, state.tried)
    return replace(state, settled=(*state.settled, cause), pending=state.pending[1:], tried=()).ended()


def _reach(state: Confirmation) -> int | None:
    """Return how many steps the restored module outputs cover, if any."""
    return min((way.steps for way in state.kept if way.kind), default=None)


def _trained(state: Confirmation) -> frozenset[str]:
    """Return the parameters with recorded gradients in both records."""
    probes = (state.reference.record.evidence.probe, state.candidate.record.evidence.probe)
    names = [{tap.name for tap in probe.taps if tap.stage == "gradient"} for probe in probes if probe]
    return frozenset[str]().union(*names).intersection(*names)


def requested(state: Confirmation) -> Request:
    """Return the next experiment: capture tensors, or restore a value."""
    way = state.tests[0][1]
    held = (*state.kept, way)
    if (lacking := next((each for each in held if each.captures), None)) is not None:
        text = f"capture of {lacking.description}"
        return state.request("reference", text, lacking.steps, captures=lacking.captures)
    if way.method == "exact":
        side: Side = "candidate" if state.prepared else "reference"
        return state.request(side, way.description, way.steps, precision="fp64")
    text = " and ".join(each.description for each in held)
    sources = {source.key: source for each in held for source in each.sources}
    replays = (replay for each in held for replay in each.replays if (replay.step or 0) < way.steps)
    return state.request("candidate", text, way.steps, tuple(sources.values()), replays=tuple(replays))
