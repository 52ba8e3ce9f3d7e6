"""Decision whether a difference disappears once a suspect has the reference's value."""

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
"""Maximum share of a rounding difference that fp64 leaves. Rounding shrinks a million times."""

_CLOSER = 0.25
"""A difference below the envelope has disappeared if at most this share is left."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one experiment."""

    restored: bool
    text: str
    left: tuple[Mismatch, ...] = ()
    """Mismatches that appear now and that no known cause explains: second causes, hidden until now."""
    further: str = ""
    """Class of a module that still differs."""


def _pair(
    reference: LoadedRecord,
    other: LoadedRecord,
    steps: int,
    rungs: frozenset[str],
    *,
    exact: bool,
    rounding: tuple[str, ...] = (),
    measured: LoadedRecord | None = None,
) -> Pair:
    probe = reference.record.evidence.probe
    whole = probe is not None and steps >= len(probe.steps)
    imposed = rungs if whole else rungs | {"evaluation"}
    if not exact:
        rounding = (*rounding, "a rung imposed by its definition")
    return Pair(reference, other, steps, imposed, rounding, measured)


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
    rounding: tuple[str, ...] = (),
    measured: LoadedRecord | None = None,
) -> Outcome:
    """Decide whether `after`, with the last of `ways` in force, removes the mismatch.

    `before` is the candidate without it; `known` are the codes of other causes that are still in force. `rounding`
    are reasons for other bits beside the ways themselves. `measured` is the candidate's record with its distances from
    fp64, which tell number formats from formulas.
    """
    way = ways[-1]
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    pair = _pair(reference, after, way.steps, rungs, exact=exact, rounding=rounding, measured=measured)
    left = walk(pair).mismatches
    fresh = tuple(other for other in left if other.suspicions[0].code not in known)
    if not fresh:
        # A mismatch of bits alone may lie below every limit: then the difference has to shrink clearly.
        if not exact and not mismatch.independent and not _came_closer(reference, before, after, way.steps):
            return Outcome(restored=False, text="the difference stays")
        return Outcome(restored=True, text="all later evidence equals the reference's again")
    first = fresh[0]
    place = f"{first.at.stage} at step {first.at.step}" if first.at.step is not None else first.at.stage
    text = f"{place}, {first.at.at}, still differs"
    if way.kinds and first.rung == "forward" and first.at.step == mismatch.at.step:
        return Outcome(restored=False, text=text, further=_kind(reference, first))
    later = position(first) > position(mismatch) and first.suspicions[0].code != mismatch.suspicions[0].code
    if later and not (mismatch.rung == "forward" and first.rung == "forward"):
        return Outcome(restored=True, text=f"all evidence up to there equals the reference's again; {text}", left=fresh)
    return Outcome(restored=False, text=text)


def _kind(reference: LoadedRecord, mismatch: Mismatch) -> str:
    probe = reference.record.evidence.probe
    taps = probe.taps if probe else ()
    return next((tap.kind for tap in taps if tap.stage == "forward" and tap.name == mismatch.at.at), "")


def _came_closer(reference: LoadedRecord, before: LoadedRecord, after: LoadedRecord, steps: int) -> bool:
    """Return whether differences below the envelope shrank clearly."""
    was, now = (_distances(Pair(reference, other, steps)) for other in (before, after))
    common = was.keys() & now.keys()
    worst = max(common, key=lambda key: was[key], default=None)
    if worst is None or was[worst] == 0:
        return False
    return now[worst] <= _CLOSER * was[worst]


def _distances(pair: Pair) -> dict[tuple[int, str, str], float]:
    """Return all numeric differences of two runs, in units of their limits."""
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


def agree_exactly(mismatch: Mismatch, before: Pair, after: Pair, known: frozenset[str]) -> Outcome:
    """Decide whether fp64 runs agree where the spec's precision did not."""
    after = replace(after, noise=before.rounding_only)
    was, now = (_gap(mismatch, pair) for pair in (before, after))
    if now > _VANISHED * min(was, 1.0):
        return Outcome(restored=False, text=f"they still differ by {now:.2g}")
    known |= {mismatch.suspicions[0].code, "precision"}
    left = tuple(
        other
        for other in walk(after).mismatches
        if other.suspicions[0].code not in known and position(other) > position(mismatch)
    )
    return Outcome(restored=True, text=f"they agree to {now:.2g} where they differed by {was:.2g}", left=left)


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


def located(
    reference: LoadedRecord,
    candidate: LoadedRecord,
    steps: int,
    ways: tuple[Intervention, ...] = (),
    *,
    rounding: tuple[str, ...] = (),
) -> Mismatch | None:
    """Return the first different module of two short, tapped runs."""
    rungs = frozenset[str]().union(*(each.rungs for each in ways))
    exact = not any(each.by_definition for each in ways)
    mismatches = walk(_pair(reference, candidate, steps, rungs, exact=exact, rounding=rounding)).mismatches
    return next(
        (mismatch for mismatch in mismatches if mismatch.rung == "forward" and mismatch.at.at != "logits"), None
    )
