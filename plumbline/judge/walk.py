"""Comparison of two runs' evidence, kind by kind, in computation order.

Rungs that no other rung can change (data, batches, weights, settings) are causes of their own where they differ. Of the
others, such as gradients, only the first that is `beyond` is a cause: later ones may follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from plumbline.judge.mismatches import Mismatch, without
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.bits import FIELDS, bits, different_place, evaluation_bits, other_kernels
from plumbline.judge.rungs.captured import captured_mismatches
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.evaluation import evaluation, evaluation_numbers
from plumbline.judge.rungs.formats import formats
from plumbline.judge.rungs.forward import forward
from plumbline.judge.rungs.gradient import clipping, frozen, gradient
from plumbline.judge.rungs.loss import loss, undefined_loss
from plumbline.judge.rungs.model import architecture, weights
from plumbline.judge.rungs.optimizer import schedule, settings, update
from plumbline.judge.rungs.proven import unproven
from plumbline.judge.rungs.rng import rng
from plumbline.judge.rungs.windows import proven_steps, side_mismatch, window_mismatch
from plumbline.judge.spec_precision import other_format
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement
from plumbline.schema.stage import STAGES, Stage

Likeness = Literal["equal", "within", "unknown", "beyond"]
"""Class of a rung at one step: equal bits, a difference within its limits, a difference without tensors to measure it,
or a difference beyond the limits. The limit is zero where nothing explains rounding."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Class of one kind of evidence ("rung") at one step."""

    stage: Stage
    step: int | None
    likeness: Likeness
    place: str = ""
    """First different tensor, in the order of computation."""
    mismatch: Mismatch | None = None
    """The difference, if it is beyond."""

    @property
    def position(self) -> tuple[float, int]:
        """Return the sort key (step, evidence kind) in computation order."""
        return (math.inf if self.step is None else self.step, STAGES.index(self.stage))


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


def walk(pair: Pair) -> Walk:
    """Compare two probe runs, one evidence kind at a time; skip `pair.imposed`."""
    rounding = other_kernels(pair)
    standings = tuple(_computed(pair, is_excused=bool(rounding)))
    apart = next((standing for standing in standings if standing.likeness != "equal"), None)
    given = sorted(_given(pair), key=attrgetter("position"))
    given = _without_consequences(given) if captured(pair.candidate.record.spec) else given
    causes = _with_first(given, _first_beyond(pair, standings, apart))
    if rounding and not causes and (format_ := other_format(pair, "probe")) is not None:
        causes = [format_]
    if causes and (apart is None or _is_at_or_before(causes[0], apart)):
        causes[0] = replace(causes[0], is_certain=True)
    return Walk(tuple(_distinct(causes)), rounding, standings, proven_steps(pair))


def _without_consequences(causes: list[Mismatch]) -> list[Mismatch]:
    """Drop the numbers of a captured loop that differ behind another cause."""
    return [cause for place, cause in enumerate(causes) if cause.basis not in ("computed", "portable") or not place]


def _given(pair: Pair) -> Iterator[Mismatch]:
    """Yield each check's first mismatch that no other check explains."""
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
    per_step: dict[str, Callable[[int], Mismatch | None]] = {
        "batch": lambda step: batch(pair, step, known),
        "rng": lambda step: rng(pair, step) if step == 0 else None,
        "format": lambda step: formats(pair, step),
        "loss": lambda step: loss(pair, step),
        "clipped": lambda step: clipping(pair, step),
        "schedule": lambda step: schedule(pair, step),
    }
    for name, rung in per_step.items():
        if name not in pair.imposed:
            found = (rung(step) for step in range(len(pair.common)))
            yield from [mismatch for mismatch in found if mismatch is not None][:1]
    if "evaluation" not in pair.imposed and not mismatches and (evaluated := evaluation(pair)) is not None:
        yield evaluated


def _computed(pair: Pair, *, is_excused: bool) -> Iterator[Standing]:
    """Classify computed evidence in order; stop at the first beyond its limit.

    Between kernels numbers have no limits: windows decide, and each run proves its own steps. An experiment asks
    what a change has left of a difference, and so for its size.
    """
    formula = window_mismatch(pair, "probe")
    formula = formula if formula is not None and formula.basis == "portable" else None
    if _rounds(pair):
        pair = replace(pair, scale=math.inf)
    for step in range(len(pair.common)):
        for stage in ("rng", *FIELDS):
            if stage in pair.imposed:
                continue
            standing = _standing(pair, step, stage, formula, is_excused=is_excused)
            yield standing
            if standing.mismatch is not None:
                return
    exact = evaluation_bits(pair)
    if exact is not None and "evaluation" not in pair.imposed:
        beyond = evaluation_numbers(pair) or (None if is_excused else exact)
        yield Standing("evaluation", None, "within" if beyond is None else "beyond", exact.at.at, beyond)


def _rounds(pair: Pair) -> bool:
    """Return whether the two runs' kernels round differently; always `False` for experiments."""
    left, right = pair.reference.record, pair.candidate.record
    return right.experiment is None and bool(rounds_differently(left, right, "probe"))


def _standing(pair: Pair, step: int, stage: Stage, formula: Mismatch | None, *, is_excused: bool) -> Standing:
    """Classify one kind of evidence at one step."""
    number, place = _number(pair, step, stage), _place(pair, step, stage)
    if number is not None:
        return Standing(stage, step, "beyond", place or number.at.at, number)
    if place is not None and not is_excused:
        return Standing(stage, step, "beyond", place, _named(bits(pair, step, stage), formula))
    if formula is not None and (formula.at.step, formula.stage) == (step, stage):
        return Standing(stage, step, "beyond", place or formula.at.at, formula)
    if place is None:
        return Standing(stage, step, "equal")
    return Standing(stage, step, "within" if step in pair.tap_steps else "unknown", place)


def _named(different: Mismatch | None, formula: Mismatch | None) -> Mismatch | None:
    """Attribute the first different bit to the formula that windows show.

    Windows may show it at a later step, as they skip steps.
    """
    if different is None or formula is None or different.suspicions[0].code != "kernel":
        return different
    return _by_formula(without("kernel", different), formula)


def _by_formula(different: Mismatch, formula: Mismatch) -> Mismatch:
    others = (each for each in different.suspicions if each.code != formula.suspicions[0].code)
    return replace(
        different, at=different.at.replace(at=formula.at.at), findings=(*different.findings, *formula.findings),
        suspicions=(*formula.suspicions, *others),
    )  # fmt: skip


def _place(pair: Pair, step: int, stage: Stage) -> str | None:
    return None if stage == "rng" else different_place(pair, step, stage)


def _number(pair: Pair, step: int, stage: Stage) -> Mismatch | None:
    """Return the mismatch of numbers beyond their limits, if any."""
    if stage == "rng":
        return rng(pair, step) if step else None
    if stage == "forward":
        return forward(pair, step)
    if stage == "gradient":
        return gradient(pair, step)
    if stage == "loss":
        return undefined_loss(pair, step)
    return update(pair, step) if stage == "optimizer" else None


def _first_beyond(pair: Pair, standings: tuple[Standing, ...], apart: Standing | None) -> Mismatch | None:
    """Return the first computed mismatch.

    If the runs separate at a step without measured tensors, that difference causes a later one that is
    beyond. A difference of windows needs no such guess, and kernels that round differently allow none.
    """
    beyond = standings[-1].mismatch if standings else None
    is_guess = apart is not None and apart.likeness == "unknown" and not _rounds(pair)
    if beyond is None or apart is None or not is_guess or beyond.basis == "portable":
        return beyond
    return bits(pair, apart.step or 0, apart.stage)


def _with_first(causes: list[Mismatch], first: Mismatch | None) -> list[Mismatch]:
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
