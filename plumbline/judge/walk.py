"""One walk over (part, step, stage): what differs between two trainings, in the order of consequence.

A rung is one question to any part's log. What no other rung can change (data, batches, weights, settings) is a cause of
its own. Of what is computed only the first difference is, as later ones may follow from it. Parts are asked in the
order probe, `speed`, `learn`: the first that shows its cause explains the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter

from plumbline.judge.computed import Standing, computed, first_beyond
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair, apart
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.bits import bits_due, logged_bits, other_kernels
from plumbline.judge.rungs.captured import captured_mismatches
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.evaluation import curve_evaluation, evaluation, miscounted
from plumbline.judge.rungs.formats import formats
from plumbline.judge.rungs.functions import named_by_calls
from plumbline.judge.rungs.gradient import clipping, frozen
from plumbline.judge.rungs.loss import first_loss, loss
from plumbline.judge.rungs.model import architecture, logged_start, weights
from plumbline.judge.rungs.optimizer import schedule, settings
from plumbline.judge.rungs.production import unsteady
from plumbline.judge.rungs.proven import other_draws, unproven
from plumbline.judge.rungs.rng import draws, dropout, rng
from plumbline.judge.rungs.state import own_state
from plumbline.judge.rungs.windows import proven_steps, side_mismatch, window_mismatch
from plumbline.judge.spec_precision import other_format
from plumbline.judge.stated import contradiction
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement
from plumbline.schema.spec import PartName
from plumbline.schema.stage import STAGES


@dataclass(frozen=True, slots=True)
class Walk:
    """Result of comparing all evidence of two runs."""

    mismatches: tuple[Mismatch, ...]
    """One mismatch per separable cause, the first divergence first."""
    rounding: tuple[Statement, ...]
    """Recorded differences that explain different rounding."""
    standings: tuple[Standing, ...] = ()
    """Rungs of the computation, up to the first that is beyond."""
    proven: int = 0
    """Number of steps over which equal windows prove equal formulas."""

    @property
    def equal(self) -> bool:
        """Return whether all probe bits are equal."""
        return not self.mismatches and all(standing.likeness == "equal" for standing in self.standings)


def differing(pair: Pair, probe: Walk | None) -> Iterator[tuple[PartName, tuple[Mismatch, ...]]]:
    """Yield (part, its mismatches) of each part, up to the first whose cause is shown."""
    own = _of_probe(pair, probe)
    yield "probe", own
    parts: tuple[PartName, ...] = () if own else ("speed", "learn")
    for part in parts:
        found = _of_part(pair, part)
        yield part, found
        if any(mismatch.suspicions[0].shown for mismatch in found):
            return


def _of_probe(pair: Pair, probe: Walk | None) -> tuple[Mismatch, ...]:
    """Return the probe's mismatches, and what the record shows to be wrong by itself beside them."""
    found = probe.mismatches if probe is not None else ()
    own = contradiction(pair.candidate, "probe") or miscounted(pair, "probe") or other_draws(pair, "probe")
    known = {mismatch.suspicions[0].code for mismatch in found} | {mismatch.at.stage for mismatch in found}
    return found if own is None or known & {own.suspicions[0].code, own.at.stage} else (*found, own)


def _of_part(pair: Pair, part: PartName) -> tuple[Mismatch, ...]:
    """Return the mismatches of a part after the probe; of a curve, also that of its evaluation."""
    if pair.candidate.record.experiment is not None:
        return ()
    log = logged(pair, part)
    first = attributed(log, formula(pair, part))
    other = evaluated(pair, log, loss=first is None) if part == "learn" else None
    found = [mismatch for mismatch in (first, other) if mismatch is not None]
    if len({mismatch.suspicions[0].code for mismatch in found}) < len(found):
        found = [replace(found[0], findings=(*found[0].findings, *found[1].findings))]
    return tuple(replace(mismatch, at=mismatch.at.replace(part=part)) for mismatch in found)


def walk(pair: Pair) -> Walk:
    """Compare two probe runs, one evidence kind at a time; skip `pair.imposed`."""
    rounding = other_kernels(pair)
    standings = tuple(computed(pair, is_excused=bool(rounding)))
    apart = next((standing for standing in standings if standing.likeness != "equal"), None)
    given = sorted(_given(pair), key=attrgetter("position"))
    given = _without_consequences(given) if captured(pair.candidate.record.spec) else given
    causes = with_first(given, first_beyond(pair, standings, apart))
    if rounding and not causes and (format_ := other_format(pair, "probe")) is not None:
        causes = [format_]
    if causes and (apart is None or _is_at_or_before(causes[0], apart)):
        causes[0] = replace(causes[0], is_certain=True)
    causes = [named_by_calls(pair, cause) for cause in causes]
    return Walk(tuple(_distinct(causes)), rounding, standings, proven_steps(pair))


def _without_consequences(causes: list[Mismatch]) -> list[Mismatch]:
    """Drop the numbers of a captured loop that differ behind another cause."""
    return [cause for place, cause in enumerate(causes) if cause.basis not in ("computed", "portable") or not place]


def logged(pair: Pair, part: PartName, *, is_due: bool | None = None) -> Mismatch | None:
    """Return the first different entry in the logs of `speed` or `learn`.

    `is_due`: whether losses, norms and weights must have equal bits; by default, where the machines owe them.
    """
    if pair.logs(part) is None:
        return None
    is_due = bits_due(pair, part) if is_due is None else is_due
    exact = min(_exact(pair, part), key=_step, default=None)
    number = logged_bits(pair, part) if is_due else first_loss(pair, part) if part == "learn" else None
    found = exact if number is None or (exact is not None and _step(exact) <= _step(number)) else number
    check = f"{part}.{'bits' if is_due else 'exact'}"
    return None if found is None else replace(found, findings=(found.findings[0].replace(check=check),))


def _step(mismatch: Mismatch) -> float:
    return math.inf if mismatch.at.step is None else mismatch.at.step


def _given(pair: Pair) -> Iterator[Mismatch]:
    """Yield each check's first mismatch of a probe that no other check explains."""
    mismatches = data(pair) if "data" not in pair.imposed else []
    yield from mismatches
    known = frozenset(name for mismatch in mismatches for name in mismatch.suspicions[0].names)
    whole = {
        "architecture": architecture(pair), "weights": weights(pair), "frozen": frozen(pair),
        "settings": settings(pair), "device": side_mismatch(pair, "probe"),
    }  # fmt: skip
    yield from (mismatch for name, mismatch in whole.items() if mismatch is not None and name not in pair.imposed)
    shown = unproven(pair.candidate.record, "probe", pair.reference.record)
    if shown is not None and (shown.stage not in pair.imposed or captured(pair.candidate.record.spec)):
        yield shown
    yield from captured_mismatches(pair)
    yield from _exact(pair, "probe", known)
    if "evaluation" not in pair.imposed and not mismatches and (evaluated := evaluation(pair)) is not None:
        yield evaluated


def _exact(pair: Pair, part: PartName, known: frozenset[str] = frozenset()) -> Iterator[Mismatch]:
    """Yield the first mismatch of each question whose answer is exact on every machine.

    A probe is asked at each step, another log where one of its columns differs. `known` are batch fields that the
    data explain.
    """
    is_probe, logs = part == "probe", pair.logs(part) or ()

    def steps(*columns: str) -> Iterable[int]:
        return range(len(pair.common)) if is_probe else apart(*logs, *columns)

    seeds, drawn = (None, next((rng(pair, step) for step in steps()), None)) if is_probe else draws(pair, part)
    before = () if is_probe else (dropout(pair, part), logged_start(pair, part), seeds)
    questions: tuple[tuple[str, Iterable[Mismatch | None]], ...] = (
        ("rng", before),
        ("batch", (batch(pair, step, known, part) for step in steps("num_rows", "batches"))),
        ("rng", (drawn,)),
        ("format", (formats(pair, step) for step in steps())),
        ("loss", (loss(pair, step) for step in steps())),
        ("clipped", (clipping(pair, step) for step in steps())),
        ("schedule", (schedule(pair, step, part) for step in steps("learning_rates"))),
    )
    for name, answers in questions:
        if name not in pair.imposed:
            yield from islice(filter(None, answers), 1)


def formula(pair: Pair, part: PartName) -> Mismatch | None:
    """Return a mismatch of a part that rounding cannot explain, at the first step that a record shows."""
    proof, parted = contradiction(pair.candidate, part), own_state(pair, part, parted=True)
    found = (
        own_state(pair, part)
        or (unsteady(pair) if part == "speed" else None)
        or other_format(pair, part)
        or window_mismatch(pair, part)
        or proof
        or parted
        or other_draws(pair, part)
    )
    steps = [each.at.step for each in (proof, parted) if each is not None]
    return None if found is None else _first_at(found, *steps)


def attributed(apart: Mismatch | None, shown: Mismatch | None) -> Mismatch | None:
    """Attribute a difference in the logs to the cause that a record shows itself."""
    if apart is None or shown is None:
        return apart or shown
    both = (*apart.findings, *shown.findings)
    # What a step shows of itself says more than the first number that differs, and less than an exact log.
    if apart.suspicions[0].shown:
        return replace(apart, findings=both)
    step = apart.at.step
    if step and apart.at.at == "loss" and shown.suspicions[0].code in ("gradient", "optimizer"):
        step -= 1  # whose loss was still equal
    return replace(_first_at(shown, step), findings=both)


def _first_at(found: Mismatch, *steps: int | None) -> Mismatch:
    """Return a mismatch at the first of its own step and `steps`: each kind of evidence exists at some steps only."""
    first = min((each for each in (found.at.step, *steps) if each is not None), default=None)
    return replace(found, at=found.at.replace(step=first))


def evaluated(pair: Pair, log: Mismatch | None, *, loss: bool = True) -> Mismatch | None:
    """Return an evaluation that differs although its training does not.

    `log` is where the curves separate; `loss` is `False` if another loss function may explain an evaluation's.
    """
    parting = log.at.step if log is not None and log.at.step is not None else math.inf
    found = curve_evaluation(pair, parting if bits_due(pair, "learn") else -1)
    return found or miscounted(pair, "learn", loss=loss)


def with_first(causes: list[Mismatch], first: Mismatch | None) -> list[Mismatch]:
    """Add the first computed mismatch, unless another cause explains it."""
    if first is None:
        return causes
    step, below = first.at.step, STAGES.index(first.stage) >= STAGES.index("loss")
    # A different loss function differs at every step, also where small logits hide the difference.
    causes = [
        replace(cause, at=cause.at.replace(step=step))
        if cause.stage == "loss" and below and step is not None and (cause.at.step or 0) > step
        else cause
        for cause in causes
    ]
    # What a later step shows of itself names the place of the first bit that differs.
    code, is_shown = first.suspicions[0].code, first.suspicions[0].shown
    causes = [
        replace(cause, at=first.at.replace(at=cause.at.at))
        if not is_shown
        and cause.suspicions[0].shown
        and cause.suspicions[0].code == code
        and (cause.at.step or 0) > (step or 0)
        else cause
        for cause in causes
    ]
    # All products of a shorter format differ: the first place is that of the first output beyond its limit.
    causes = [
        replace(cause, at=first.at)
        if cause.suspicions[0].code == "precision" and cause.stage == "forward" and cause.position == first.position
        else cause
        for cause in causes
    ]
    if not any(cause.position <= first.position for cause in causes):
        causes.append(first)
    return sorted(causes, key=attrgetter("position"))


def _is_at_or_before(mismatch: Mismatch, apart: Standing) -> bool:
    """Return whether a mismatch occurs no later than the first different bit."""
    if mismatch.position != apart.position:
        return mismatch.position < apart.position
    # Within these rungs, tensors are in the order of execution.
    return mismatch.stage not in ("forward", "gradient") or mismatch.at.at == apart.place


def _distinct(candidates: list[Mismatch]) -> Iterator[Mismatch]:
    """Yield the first mismatch of each cause code."""
    seen = set()
    for mismatch in candidates:
        code = mismatch.suspicions[0].code
        if code not in seen:
            seen.add(code)
            yield mismatch
