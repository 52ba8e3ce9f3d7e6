"""Decide whether a difference disappears once the reference's value is restored.

Without any experiment, 15 of 216 names are lost, and of 129 confirmed faults 104 are less certain (ADR 0036).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from plumbline.judge.intervention import Intervention
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.walk import position, walk
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import TapStage
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import relative


@dataclass(frozen=True, slots=True)
class RestoredOutcome:
    """Result of one experiment."""

    restored: bool
    text: Statement
    left: tuple[Mismatch, ...] = ()
    """Mismatches that appear now and that no known cause explains: second causes, hidden until now."""
    scale: float = 1.0
    """Factor of every limit in later comparisons of the same two sides, see `Pair.scale`."""


def _pair(
    reference: LoadedRecord,
    other: LoadedRecord,
    steps: int,
    rungs: frozenset[str],
    *,
    exact: bool,
    rounding: tuple[Statement, ...] = (),
    in_fp64: Pair | None = None,
) -> Pair:
    probe = reference.record.evidence.probe
    whole = probe is not None and steps >= len(probe.steps)
    imposed = rungs if whole else rungs | {"evaluation"}
    if not exact:
        rounding = (*rounding, fact("restored.imposed"))
    noise, scale = (in_fp64.noise, in_fp64.scale) if in_fp64 is not None else (frozenset[tuple[str, str]](), 1.0)
    return Pair(reference, other, steps, imposed, rounding, noise, scale)


def disagreement(candidate: LoadedRecord, rerun: LoadedRecord, steps: int) -> Mismatch | None:
    """Return the first mismatch between a run and its unchanged rerun."""
    mismatches = walk(_pair(candidate, rerun, steps, frozenset(), exact=True)).mismatches
    return mismatches[0] if mismatches else None


def check_restored(
    reference: LoadedRecord,
    before: LoadedRecord,
    after: LoadedRecord,
    *,
    mismatch: Mismatch,
    ways: tuple[Intervention, ...],
    known: frozenset[str],
    rounding: tuple[Statement, ...] = (),
    in_fp64: Pair | None = None,
) -> RestoredOutcome:
    """Decide whether `after`, with the last of `ways` in force, removes the mismatch.

    `before` is the candidate without it; `known` are the codes of other causes that are still in force. `rounding`
    are reasons for other bits beside the ways themselves. `in_fp64` is the comparison of both
    sides' fp64 runs, if the experiment is one of fp64: its noise and its limits hold here too.
    """
    way = ways[-1]
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    pair = _pair(reference, after, way.steps, rungs, exact=exact, rounding=rounding, in_fp64=in_fp64)
    left = walk(pair).mismatches
    fresh = tuple(other for other in left if other.suspicions[0].code not in known)
    if not fresh:
        # A mismatch of bits alone may lie below every limit: then the difference has to shrink clearly.
        if not exact and mismatch.basis != "given" and not _came_closer(pair, before, way.steps):
            return RestoredOutcome(restored=False, text=fact("restored.stays"))
        return RestoredOutcome(restored=True, text=fact("restored.equal"))
    first = fresh[0]
    place = (
        fact("place.at-step", stage=first.at.stage, step=first.at.step) if first.at.step is not None else first.at.stage
    )
    text = fact("restored.still-differs", place=place, at=first.at.at)
    later = position(first) > position(mismatch) and first.suspicions[0].code != mismatch.suspicions[0].code
    if later and not (mismatch.rung == "forward" and first.rung == "forward"):
        return RestoredOutcome(restored=True, text=fact("restored.equal-up-to", then=text), left=fresh)
    return RestoredOutcome(restored=False, text=text)


def _came_closer(pair: Pair, before: LoadedRecord, steps: int) -> bool:
    """Return whether restoring a value shrank the differences clearly."""
    sides = (before, pair.candidate)
    was, now = (_distances(Pair(pair.reference, side, steps, noise=pair.noise, scale=pair.scale)) for side in sides)
    common = was.keys() & now.keys()
    worst = max(common, key=lambda key: was[key], default=None)
    if worst is None or was[worst] == 0:
        return False
    return now[worst] <= limits.CLOSER * was[worst]


def _distances(pair: Pair) -> dict[tuple[int, str, str], float]:
    """Return all numeric differences of two runs, divided by their limits."""
    distances: dict[tuple[int, str, str], float] = {}
    for step, (left, right) in enumerate(pair.common):
        distances[step, "loss", ""] = relative(left.loss, right.loss) / pair.loss_limit(step)
        distances[step, "norm", ""] = relative(left.gradient_norm, right.gradient_norm) / pair.norm_limit(step)
        for tap in pair.errors(step, "weight"):
            distances[step, "weight", tap.reference.name] = tap.ratio
    if pair.probes is not None and all(probe.evaluation for probe in pair.probes):
        ours, theirs = (probe.evaluation for probe in pair.probes)
        if ours is not None and theirs is not None and ours.step == theirs.step:
            distances[ours.step, "evaluation", ""] = relative(ours.loss, theirs.loss) / pair.loss_limit(0)
    return {key: value for key, value in distances.items() if math.isfinite(value)}


def agree_exactly(mismatch: Mismatch, before: Pair, after: Pair, known: frozenset[str]) -> RestoredOutcome:
    """Return whether two fp64 runs agree where lower precision did not."""
    was, now = (_gap(mismatch, pair) for pair in (before, after))
    if now > limits.VANISHED * min(was, 1.0):
        return RestoredOutcome(restored=False, text=fact("restored.differ", now=now))
    known |= {mismatch.suspicions[0].code, "precision"}
    scale = limits.VANISHED if now <= limits.EXACT else 1.0
    found = [
        # Above the first of them all evidence agrees in fp64: its place is certain.
        replace(other, is_certain=scale < 1 and place == 0)
        for place, other in enumerate(walk(replace(after, scale=scale)).mismatches)
    ]
    left = tuple(
        other for other in found if other.suspicions[0].code not in known and position(other) > position(mismatch)
    )
    text = fact("restored.agree", now=now, was=was)
    return RestoredOutcome(restored=True, text=text, left=left, scale=scale)


_STAGES: dict[str, TapStage] = {"forward": "forward", "gradient": "gradient", "optimizer": "weight"}


def _gap(mismatch: Mismatch, pair: Pair) -> float:
    """Return the distance of two runs at a mismatch: worst tensor, or scalars."""
    step = mismatch.at.step or 0
    stage = _STAGES.get(mismatch.rung)
    errors = [tap.error for tap in pair.errors(step, stage) if not math.isinf(tap.limit)] if stage else []
    if errors:
        return max(errors)
    # The update of an untapped step shows in the next forward pass.
    shown = step + 1 if mismatch.rung == "optimizer" else step
    if shown >= len(pair.common):
        return math.inf
    left, right = pair.common[shown]
    name = {"loss": "loss", "gradient": "gradient_norm", "clipped": "gradient_norm_clipped"}.get(mismatch.rung)
    return relative(*(getattr(side, name or "loss_reference") for side in (left, right)))
