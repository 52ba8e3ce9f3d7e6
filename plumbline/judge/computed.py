"""Numbers that two probes compute, kind by kind: their bits, or their distance within its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from plumbline.judge.mismatches import Mismatch, without
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import FIELDS, bits, different_place, evaluation_bits
from plumbline.judge.rungs.evaluation import evaluation_numbers
from plumbline.judge.rungs.forward import forward
from plumbline.judge.rungs.gradient import gradient
from plumbline.judge.rungs.loss import undefined_loss
from plumbline.judge.rungs.optimizer import update
from plumbline.judge.rungs.rng import rng
from plumbline.judge.rungs.windows import window_mismatch
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


def computed(pair: Pair, *, is_excused: bool) -> Iterator[Standing]:
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


def first_beyond(pair: Pair, standings: tuple[Standing, ...], apart: Standing | None) -> Mismatch | None:
    """Return the first computed mismatch.

    If the runs separate at a step without measured tensors, that difference causes a later one that is
    beyond. A difference of windows needs no such guess, and kernels that round differently allow none.
    """
    beyond = standings[-1].mismatch if standings else None
    is_guess = apart is not None and apart.likeness == "unknown" and not _rounds(pair)
    if beyond is None or apart is None or not is_guess or beyond.basis == "portable":
        return beyond
    return bits(pair, apart.step or 0, apart.stage)
