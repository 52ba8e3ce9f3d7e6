"""Whether the evidence snapped back once a suspect was put back."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from plumbline.judge.experiments import Intervention
from plumbline.judge.ladder import position, walk
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import relative
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import TapStage

__all__ = ["Outcome", "agree_exactly", "check_restored", "disagreement", "located"]

_VANISHED = 0.01
"""In fp64 a difference of rounding shrinks a million times; one of formula stays as it is."""

_CLOSER = 0.25
"""A difference below the envelope snapped back if at most this share of it is left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment gave."""

    restored: bool
    words: str
    left: tuple[Mismatch, ...] = ()
    """Breaks that show now, and that nothing known explains: second causes, hidden until now."""
    further: str = ""
    """A module of another class that is off all the same."""


def _pair(reference: LoadedRecord, other: LoadedRecord, steps: int, rungs: frozenset[str], *, exact: bool) -> Pair:
    probe = reference.record.evidence.probe
    whole = probe is not None and steps >= len(probe.steps)
    put_back = rungs if whole else rungs | {"evaluation"}
    return Pair(reference, other, steps, put_back, () if exact else ("a rung imposed by its definition",))


def disagreement(candidate: LoadedRecord, rerun: LoadedRecord, steps: int) -> Mismatch | None:
    """Where an unchanged rerun parts from the run that it repeats."""
    mismatches = walk(_pair(candidate, rerun, steps, frozenset(), exact=True)).mismatches
    return mismatches[0] if mismatches else None


def check_restored(
    reference: LoadedRecord,
    before: LoadedRecord,
    after: LoadedRecord,
    *,
    one: Mismatch,
    ways: tuple[Intervention, ...],
    known: frozenset[str],
) -> Outcome:
    """What `after` says of the last of `ways`, which puts back the suspect of `one`.

    `before` is the candidate without it; `known` are the codes of other causes that are still in force.
    """
    way = ways[-1]
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    left = walk(_pair(reference, after, way.steps, rungs, exact=exact)).mismatches
    fresh = tuple(other for other in left if other.suspicions[0].code not in known)
    if not fresh:
        # A break by bits alone may lie below every limit: there it has to come clearly closer.
        if not exact and not one.independent and not _came_closer(reference, before, after, way.steps):
            return Outcome(restored=False, words="the difference stays")
        return Outcome(restored=True, words="everything below is the reference's again")
    first = fresh[0]
    place = f"{first.at.stage} at step {first.at.step}" if first.at.step is not None else first.at.stage
    words = f"{place}, {first.at.at}, still differs"
    if way.kinds and first.rung == "forward" and first.at.step == one.at.step:
        return Outcome(restored=False, words=words, further=_kind(reference, first))
    later = position(first) > position(one) and first.suspicions[0].code != one.suspicions[0].code
    if later and not (one.rung == "forward" and first.rung == "forward"):
        return Outcome(restored=True, words=f"everything up to there is the reference's again; {words}", left=fresh)
    return Outcome(restored=False, words=words)


def _kind(reference: LoadedRecord, one: Mismatch) -> str:
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
            found[step, "weight", tap.reference.name] = tap.ratio
    if pair.probes is not None and all(probe.evaluation for probe in pair.probes):
        ours, theirs = (probe.evaluation for probe in pair.probes)
        if ours is not None and theirs is not None and ours.step == theirs.step:
            found[ours.step, "evaluation", ""] = relative(ours.loss, theirs.loss) / pair.loss_limit(0)
    return {key: value for key, value in found.items() if math.isfinite(value)}


def agree_exactly(one: Mismatch, before: Pair, after: Pair, known: frozenset[str]) -> Outcome:
    """Whether two runs in fp64 agree where the same runs in the spec's precision did not; and what they leave over."""
    after = replace(after, noise=before.rounding_only)
    was, now = (_gap(one, pair) for pair in (before, after))
    if now > _VANISHED * min(was, 1.0):
        return Outcome(restored=False, words=f"they differ by {now:.2g} all the same")
    known |= {one.suspicions[0].code, "precision"}
    left = tuple(
        other
        for other in walk(after).mismatches
        if other.suspicions[0].code not in known and position(other) > position(one)
    )
    return Outcome(restored=True, words=f"they agree to {now:.2g} where they differed by {was:.2g}", left=left)


_STAGES: dict[str, TapStage] = {"forward": "forward", "gradient": "gradient", "optimizer": "weight"}


def _gap(one: Mismatch, pair: Pair) -> float:
    """Return how far apart two runs are at the mismatch: the worst tensor, or the scalars of an untapped step."""
    step = one.at.step or 0
    stage = _STAGES.get(one.rung)
    errors = [tap.error for tap in pair.errors(step, stage) if not math.isinf(tap.limit)] if stage else []
    if errors:
        return max(errors)
    # The update of an untapped step shows in the next forward pass.
    shown = step + 1 if one.rung == "optimizer" else step
    if shown >= len(pair.common):
        return math.inf
    left, right = pair.common[shown]
    name = {"loss": "loss", "gradient": "gradient_norm", "clipped": "gradient_norm_clipped"}.get(one.rung)
    return relative(*(getattr(side, name or "loss_reference") for side in (left, right)))


def located(
    reference: LoadedRecord, candidate: LoadedRecord, steps: int, ways: tuple[Intervention, ...] = ()
) -> Mismatch | None:
    """The first module that is off at the last step of two short runs, which were tapped there; `ways` are in force."""
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    mismatches = walk(_pair(reference, candidate, steps, rungs, exact=exact)).mismatches
    return next((one for one in mismatches if one.rung == "forward" and one.at.at != "logits"), None)
