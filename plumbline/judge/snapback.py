"""Whether the evidence snapped back once a suspect was put back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plumbline.judge.breaks import Break
from plumbline.judge.experiments import PutBack
from plumbline.judge.ladder import position, walk
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import relative
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import TapStage

__all__ = ["Outcome", "agree_exactly", "disagreement", "located", "snapped_back"]

_VANISHED = 0.01
"""In fp64 a difference of rounding shrinks a million times; one of formula stays as it is."""

_CLOSER = 0.25
"""A difference below the envelope snapped back if at most this share of it is left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment gave."""

    snapped: bool
    words: str
    left: tuple[Break, ...] = ()
    """Breaks that show now, and that nothing known explains: second causes, hidden until now."""
    further: str = ""
    """A module of another class that is off all the same."""


def _pair(reference: LoadedRecord, other: LoadedRecord, steps: int, rungs: frozenset[str], *, exact: bool) -> Pair:
    probe = reference.record.evidence.probe
    whole = probe is not None and steps >= len(probe.steps)
    put_back = rungs if whole else rungs | {"evaluation"}
    return Pair(reference, other, steps, put_back, () if exact else ("a rung imposed by its definition",))


def disagreement(candidate: LoadedRecord, rerun: LoadedRecord, steps: int) -> Break | None:
    """Where an unchanged rerun parts from the run that it repeats."""
    breaks = walk(_pair(candidate, rerun, steps, frozenset(), exact=True)).breaks
    return breaks[0] if breaks else None


def snapped_back(
    reference: LoadedRecord,
    before: LoadedRecord,
    after: LoadedRecord,
    *,
    one: Break,
    ways: tuple[PutBack, ...],
    known: frozenset[str],
) -> Outcome:
    """What `after` says of the last of `ways`, which puts back the suspect of `one`.

    `before` is the candidate without it; `known` are the codes of other causes that are still in force.
    """
    way = ways[-1]
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    left = walk(_pair(reference, after, way.steps, rungs, exact=exact)).breaks
    fresh = tuple(other for other in left if other.suspicions[0].code not in known)
    if not fresh:
        # A break by bits alone may lie below every limit: there it has to come clearly closer.
        if not exact and not one.independent and not _came_closer(reference, before, after, way.steps):
            return Outcome(snapped=False, words="the difference stays")
        return Outcome(snapped=True, words="everything below is the reference's again")
    first = fresh[0]
    place = f"{first.at.stage} at step {first.at.step}" if first.at.step is not None else first.at.stage
    words = f"{place}, {first.at.at}, still differs"
    if way.kinds and first.rung == "forward" and first.at.step == one.at.step:
        return Outcome(snapped=False, words=words, further=_kind(reference, first))
    later = position(first) > position(one) and first.suspicions[0].code != one.suspicions[0].code
    if later and not (one.rung == "forward" and first.rung == "forward"):
        return Outcome(snapped=True, words=f"everything up to there is the reference's again; {words}", left=fresh)
    return Outcome(snapped=False, words=words)


def _kind(reference: LoadedRecord, one: Break) -> str:
    probe = reference.record.evidence.probe
    taps = probe.taps if probe else ()
    return next((tap.kind for tap in taps if tap.stage == "forward" and tap.name == one.at.at), "")


def _came_closer(reference: LoadedRecord, before: LoadedRecord, after: LoadedRecord, steps: int) -> bool:
    """Whether what differed by less than the envelope differs clearly less now."""
    was, now = (_distances(Pair(reference, other, steps)) for other in (before, after))
    common = was.keys() & now.keys()
    worst = max(common, key=lambda key: was[key], default=None)
    if worst is None or was[worst] == 0:
        return False
    return now[worst] <= _CLOSER * was[worst]


def _distances(pair: Pair) -> dict[tuple[int, str, str], float]:
    """How far apart two runs are, number by number, each in units of its own limit."""
    found: dict[tuple[int, str, str], float] = {}
    for step, (left, right) in enumerate(pair.common):
        found[step, "loss", ""] = relative(left.loss, right.loss) / pair.loss_limit(step)
        found[step, "norm", ""] = relative(left.gradient_norm, right.gradient_norm) / pair.norm_limit(step)
        for tap in pair.errors(step, "weight"):
            found[step, "weight", tap.reference.name] = tap.error / tap.limit if tap.limit else 0.0
    if pair.probes is not None and all(probe.evaluation for probe in pair.probes):
        ours, theirs = (probe.evaluation for probe in pair.probes)
        if ours is not None and theirs is not None and ours.step == theirs.step:
            found[ours.step, "evaluation", ""] = relative(ours.loss, theirs.loss) / pair.loss_limit(0)
    return {key: value for key, value in found.items() if math.isfinite(value)}


def agree_exactly(one: Break, before: Pair, after: Pair, known: frozenset[str]) -> Outcome:
    """Whether two runs in fp64 agree where the same runs in the spec's precision did not; and what they leave over."""
    step = one.at.step or 0
    stage: TapStage = "gradient" if one.rung == "gradient" else "forward"
    errors = [[tap.error for tap in pair.errors(step, stage)] for pair in (before, after)]
    if all(errors):
        was, now = (max(found) for found in errors)
    else:
        was, now = (_loss_gap(pair, step) for pair in (before, after))
    if now > _VANISHED * min(was, 1.0):
        return Outcome(snapped=False, words=f"they differ by {now:.2g} all the same")
    known |= {one.suspicions[0].code, "precision"}
    left = tuple(
        other
        for other in walk(after).breaks
        if other.suspicions[0].code not in known and position(other) > position(one)
    )
    return Outcome(snapped=True, words=f"they agree to {now:.2g} where they differed by {was:.2g}", left=left)


def _loss_gap(pair: Pair, step: int) -> float:
    """How far apart the losses by definition are: what the logits tell where no module was tapped."""
    if step >= len(pair.common):
        return math.inf
    left, right = pair.common[step]
    return relative(left.loss_reference, right.loss_reference)


def located(
    reference: LoadedRecord, candidate: LoadedRecord, steps: int, ways: tuple[PutBack, ...] = ()
) -> Break | None:
    """The first module that is off at the last step of two short runs, which were tapped there; `ways` are in force."""
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    breaks = walk(_pair(reference, candidate, steps, rungs, exact=exact)).breaks
    return next((one for one in breaks if one.rung == "forward" and one.at.at != "logits"), None)
