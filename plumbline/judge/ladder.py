"""Evidence ladder: all rungs compared in order, with every separable cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.origin import origin, other_kernels
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.between_steps import between_steps
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.evaluation import evaluation, evaluation_numbers
from plumbline.judge.rungs.forward import dtypes, forward, forward_numbers
from plumbline.judge.rungs.gradient import clipping, frozen, gradient, gradient_numbers
from plumbline.judge.rungs.loss import loss
from plumbline.judge.rungs.model import architecture, weights
from plumbline.judge.rungs.optimizer import schedule, settings, update, update_numbers
from plumbline.judge.rungs.portable import device, portable, proven_steps
from plumbline.judge.rungs.rng import rng
from plumbline.judge.tolerance import floor_of
from plumbline.schema.fact import Statement, fact

__all__ = ["RUNGS", "Ladder", "position", "walk"]

RUNGS = (
    "data", "batch", "architecture", "weights", "state", "rng", "forward", "loss", "gradient", "clipped", "schedule",
    "optimizer", "evaluation",
)  # fmt: skip
"""Rungs in the order of consequence within one step: later rungs can follow from earlier rungs."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Result of comparing all rungs."""

    mismatches: tuple[Mismatch, ...]
    """One mismatch per separable cause, the first divergence first."""
    rounding: tuple[Statement, ...]
    """Recorded differences that explain different rounding."""
    equal: bool
    """Whether every bit of the probe is the same."""
    proven: int = 0
    """Number of steps over which equal portable legs prove equal formulas."""


def walk(pair: Pair) -> Ladder:
    """Compare two probes rung by rung; skip the rungs in `pair.imposed`."""
    rounding = other_kernels(pair)
    first_bit = origin(pair)
    mismatches = sorted((_with_fewer_bits(pair, mismatch) for mismatch in _independent(pair)), key=position)
    dependent = _proven(pair, next(_dependent(pair), None))
    if first_bit is not None and _is_root(pair, first_bit, dependent, rounding=bool(rounding)):
        if shown := [mismatch for mismatch in mismatches if _shows_later(mismatch, first_bit)]:
            same = replace(shown[0], since=first_bit.at.step)
            mismatches = sorted((same if mismatch is shown[0] else mismatch for mismatch in mismatches), key=position)
        else:
            dependent = first_bit
    formula = portable(pair)
    if formula is not None and (dependent is None or position(formula) < position(dependent)):
        dependent = formula
    if dependent is not None:
        mismatches = sorted((_from_where_it_tells(mismatch, dependent) for mismatch in mismatches), key=position)
    if dependent is not None and not any(position(mismatch) <= position(dependent) for mismatch in mismatches):
        mismatches = sorted([*mismatches, dependent], key=position)
    if mismatches and _is_first_bit(mismatches[0], first_bit):
        mismatches[0] = replace(mismatches[0], is_first_bit=True)
    return Ladder(
        tuple(_distinct(mismatches)), rounding, equal=first_bit is None and not mismatches, proven=proven_steps(pair)
    )


def _proven(pair: Pair, dependent: Mismatch | None) -> Mismatch | None:
    """Drop `operator` from a numeric mismatch if the portable legs are equal."""
    if dependent is None or dependent.at.step is None or dependent.at.step >= proven_steps(pair):
        return dependent
    left = tuple(suspicion for suspicion in dependent.suspicions if suspicion.code != "operator")
    return replace(dependent, suspicions=left) if left else dependent


def _with_fewer_bits(pair: Pair, mismatch: Mismatch) -> Mismatch:
    """Suspect `precision` first for a loss whose formula the portable legs prove equal."""
    step, likely = mismatch.at.step, mismatch.suspicions
    off = mismatch.findings[0].observed
    is_small = isinstance(off, float) and off <= floor_of("loss", "bf16")
    if mismatch.rung != "loss" or not is_small or step is None or step >= proven_steps(pair):
        return mismatch
    if likely[0].code == "precision":
        return mismatch
    why = fact("loss.fewer-bits")
    return replace(mismatch, suspicions=(Suspicion("precision", why, likely[0].evidence), *likely))


def _shows_later(mismatch: Mismatch, first_bit: Mismatch) -> bool:
    """Return whether a loss mismatch is the fault whose first bits an earlier step shows."""
    earlier = first_bit.at.step is not None and first_bit.at.step < (mismatch.at.step or 0)
    return mismatch.rung == first_bit.rung == "loss" and earlier


def _from_where_it_tells(mismatch: Mismatch, dependent: Mismatch) -> Mismatch:
    """Move a loss mismatch back to the step of a later rung's mismatch.

    A different loss function differs at every step, also where small logits hide the difference: gradients follow it.
    """
    hidden = mismatch.rung == "loss" and dependent.at.step is not None and (mismatch.at.step or 0) > dependent.at.step
    below = RUNGS.index(dependent.rung) > RUNGS.index("loss")
    return replace(mismatch, since=dependent.at.step) if hidden and below else mismatch


def _is_first_bit(mismatch: Mismatch, first_bit: Mismatch | None) -> bool:
    """Return whether all evidence above `mismatch` is bitwise equal."""
    if first_bit is None or position(mismatch) < position(first_bit):
        return True
    # Within these rungs, tensors are in the order of execution.
    same_tensor = mismatch.rung not in ("forward", "gradient") or mismatch.at.at == first_bit.at.at
    return position(mismatch) == position(first_bit) and same_tensor


def _is_root(pair: Pair, first_bit: Mismatch, dependent: Mismatch | None, *, rounding: bool) -> bool:
    """Return whether the first different bit is the cause's place, not benign rounding."""
    if not rounding:
        return dependent is None or position(first_bit) < position(dependent)
    if dependent is None or first_bit.at.step is None:
        return False
    unmeasured = first_bit.at.step not in pair.tap_steps
    return unmeasured and position(first_bit) < position(dependent)


def _independent(pair: Pair) -> Iterator[Mismatch]:
    """Yield mismatches that no other rung can have caused, at their first steps."""
    mismatches = data(pair) if "data" not in pair.imposed else []
    yield from mismatches
    known = frozenset(name for mismatch in mismatches for name in mismatch.suspicions[0].names)
    whole = {
        "architecture": architecture(pair), "weights": weights(pair), "frozen": frozen(pair),
        "settings": settings(pair), "device": device(pair),
    }  # fmt: skip
    yield from (mismatch for name, mismatch in whole.items() if mismatch is not None and name not in pair.imposed)
    per_step: dict[str, Callable[[int], Mismatch | None]] = {
        "batch": lambda step: batch(pair, step, known),
        "state": lambda step: between_steps(pair, step),
        "rng": lambda step: rng(pair, step) if step == 0 else None,
        "dtype": lambda step: dtypes(pair, step),
        "loss": lambda step: loss(pair, step),
        "clipped": lambda step: clipping(pair, step),
        "schedule": lambda step: schedule(pair, step),
    }
    for name, rung in per_step.items():
        if name in pair.imposed:
            continue
        yield from _first(rung(step) for step in range(len(pair.common)))
    if "evaluation" not in pair.imposed and not mismatches:
        yield from _first(iter([evaluation(pair)]))


def _first(mismatches: Iterator[Mismatch | None]) -> Iterator[Mismatch]:
    first = next((mismatch for mismatch in mismatches if mismatch is not None), None)
    if first is not None:
        yield first


def _dependent(pair: Pair) -> Iterator[Mismatch]:
    """Yield the numeric mismatches in ladder order; later ones may follow from the first."""
    for step in range(len(pair.common)):
        tapped = step in pair.tap_steps
        rungs = {
            "rng": rng(pair, step) if step else None,
            "forward": forward(pair, step) or forward_numbers(pair, step),
            "gradient": gradient(pair, step) if tapped else gradient_numbers(pair, step),
            "optimizer": update(pair, step) or update_numbers(pair, step),
        }
        yield from (mismatch for name, mismatch in rungs.items() if mismatch is not None and name not in pair.imposed)
    if "evaluation" not in pair.imposed:
        numbers = evaluation_numbers(pair)
        if numbers is not None:
            yield numbers


def position(mismatch: Mismatch) -> tuple[float, int]:
    """Return a mismatch's sort key in the order of consequence: step, then rung."""
    if mismatch.rung in ("architecture", "weights"):
        return (0, RUNGS.index(mismatch.rung))
    if mismatch.rung == "data":
        read = mismatch.at.step if mismatch.at.step is not None else (0 if mismatch.at.at == "tokenizer" else math.inf)
        return (read, 0)
    shown = mismatch.at.step if mismatch.since is None else mismatch.since
    return (math.inf if shown is None else shown, RUNGS.index(mismatch.rung))


def _distinct(candidates: list[Mismatch]) -> Iterator[Mismatch]:
    """Yield the first mismatch of each cause code."""
    seen = set()
    for mismatch in candidates:
        code = mismatch.suspicions[0].code
        if code not in seen:
            seen.add(code)
            yield mismatch
