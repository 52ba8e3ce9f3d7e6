"""Decide whether a difference disappears once the reference's value is restored.

Without any experiment, 15 of 216 names are lost, and of 129 confirmed faults 104 are less certain (ADR 0036).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from plumbline.judge.intervention import Intervention
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.walk import walk
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.fact import Statement, fact
from plumbline.schema.tolerance import loss_gap, relative


@dataclass(frozen=True, slots=True)
class RestoredOutcome:
    """Result of one experiment."""

    restored: bool
    text: Statement
    left: tuple[Mismatch, ...] = ()
    """Mismatches that appear now and that no known cause explains: second causes, hidden until now."""
    scale: float = 1.0
    """Factor of every limit in later comparisons of the same two sides, see `Pair.scale`."""


def _evidence(reference: LoadedRecord, steps: int, imposed: frozenset[str]) -> frozenset[str]:
    """Return the evidence kinds to ignore; includes evaluation before the probe's end."""
    probe = reference.record.evidence.probe
    is_whole = probe is not None and steps >= probe.num_steps
    return imposed if is_whole else imposed | {"evaluation"}


def disagreement(candidate: LoadedRecord, rerun: LoadedRecord, steps: int) -> Mismatch | None:
    """Return the first mismatch between a run and its unchanged rerun."""
    imposed = _evidence(candidate, steps, frozenset())
    return next(iter(walk(Pair(candidate, rerun, steps, imposed)).mismatches), None)


def check_restored(
    before: Pair, after: LoadedRecord, *, mismatch: Mismatch, ways: tuple[Intervention, ...], known: frozenset[str]
) -> RestoredOutcome:
    """Decide whether the run `after`, with a restored value, lacks the mismatch.

    `before` is the reference and the candidate without it: its noise, its limits and its reasons for different rounding
    hold here, too. `known` are the codes of other causes that are still in force.
    """
    reference, steps = before.reference, ways[-1].steps
    rungs = frozenset[str]().union(*(way.rungs for way in ways))
    exact = not any(way.by_definition for way in ways)
    rounding = before.rounding if exact else (*before.rounding, fact("restored.imposed"))
    imposed = _evidence(reference, steps, rungs)
    pair = Pair(reference, after, steps, imposed, rounding, before.noise, before.scale)
    left = walk(pair).mismatches
    fresh = tuple(other for other in left if other.suspicions[0].code not in known)
    if not fresh:
        # A mismatch of bits alone may lie below every limit: then the difference has to shrink clearly.
        if not exact and mismatch.basis != "given" and not _came_closer(pair, before.candidate, steps):
            return RestoredOutcome(restored=False, text=fact("restored.stays"))
        return RestoredOutcome(restored=True, text=fact("restored.equal"))
    first = fresh[0]
    place = (
        fact("place.at-step", stage=first.at.stage, step=first.at.step) if first.at.step is not None else first.at.stage
    )
    text = fact("restored.still-differs", place=place, at=first.at.at)
    later = first.position > mismatch.position and first.suspicions[0].code != mismatch.suspicions[0].code
    if later and not (mismatch.stage == "forward" and first.stage == "forward"):
        return RestoredOutcome(restored=True, text=fact("restored.equal-up-to", then=text), left=fresh)
    return RestoredOutcome(restored=False, text=text)


def _came_closer(pair: Pair, before: LoadedRecord, steps: int) -> bool:
    """Return whether restoring a value clearly shrank the largest difference."""
    sides = (before, pair.candidate)
    was, now = (_distances(Pair(pair.reference, side, steps, noise=pair.noise, scale=pair.scale)) for side in sides)
    common = was.keys() & now.keys()
    worst = max(common, key=lambda key: was[key], default=None)
    if worst is None or was[worst] == 0:
        return False
    return now[worst] <= limits.CLOSER * was[worst]


def _distances(pair: Pair) -> dict[tuple[int, str, str], float]:
    """Return all numeric differences between two runs, divided by their limits."""
    distances: dict[tuple[int, str, str], float] = {}
    for step, (left, right) in enumerate(pair.common):
        distances[step, "loss", ""] = loss_gap(left.loss, right.loss) / pair.loss_limit(step)
        distances[step, "norm", ""] = relative(left.gradient_norm, right.gradient_norm) / pair.norm_limit(step)
        for tap in pair.errors(step, "optimizer"):
            distances[step, "optimizer", tap.reference.name] = tap.ratio
    if pair.probes is not None and all(probe.evaluation for probe in pair.probes):
        ours, theirs = (probe.evaluation for probe in pair.probes)
        if ours is not None and theirs is not None and ours.step == theirs.step:
            distances[ours.step, "evaluation", ""] = loss_gap(ours.loss, theirs.loss) / pair.loss_limit(0)
    return {key: value for key, value in distances.items() if math.isfinite(value)}


def agree_exactly(mismatch: Mismatch, before: Pair, after: Pair, known: frozenset[str]) -> RestoredOutcome:
    """Decide whether two runs agree in fp64 that differed in lower precision."""
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
        other for other in found if other.suspicions[0].code not in known and other.position > mismatch.position
    )
    text = fact("restored.agree", now=now, was=was)
    return RestoredOutcome(restored=True, text=text, left=left, scale=scale)


def _gap(mismatch: Mismatch, pair: Pair) -> float:
    """Return how far two runs differ at a mismatch."""
    step = mismatch.at.step or 0
    errors = [tap.error for tap in pair.errors(step, mismatch.stage) if not math.isinf(tap.limit)]
    if errors:
        return max(errors)
    # The update of an untapped step shows in the next forward pass.
    shown = step + 1 if mismatch.stage == "optimizer" else step
    if shown >= len(pair.common):
        return math.inf
    left, right = pair.common[shown]
    name = {"loss": "loss", "gradient": "gradient_norm", "clipped": "clipped_norm"}.get(mismatch.stage)
    return relative(*(getattr(side, name or "defined_loss") for side in (left, right)))
