"""The evidence ladder walked from top to bottom: every cause that it can tell apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.origin import origin, other_kernels
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import batch
from plumbline.judge.rungs.data import data
from plumbline.judge.rungs.evaluation import evaluation, evaluation_numbers
from plumbline.judge.rungs.forward import dtypes, forward, forward_numbers
from plumbline.judge.rungs.gradient import clipping, frozen, gradient, gradient_numbers
from plumbline.judge.rungs.loss import loss
from plumbline.judge.rungs.model import architecture, weights
from plumbline.judge.rungs.optimizer import schedule, settings, update
from plumbline.judge.rungs.portable import device, portable, proven_steps
from plumbline.judge.rungs.rng import rng

__all__ = ["RUNGS", "Ladder", "position", "walk"]

RUNGS = (
    "data", "batch", "architecture", "weights", "rng", "forward", "loss", "gradient", "clipped", "schedule",
    "optimizer", "evaluation",
)  # fmt: skip
"""In the order of consequence within one step: what stands later can follow from what stands before it."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """What the walk found."""

    mismatches: tuple[Mismatch, ...]
    """The causes that can be told apart, the first divergence first."""
    rounding: tuple[str, ...]
    """What makes another rounding likely."""
    equal: bool
    """Every bit of the probe is the same."""
    proven: int = 0
    """Over how many steps equal portable legs prove that no formula differs."""


def walk(pair: Pair) -> Ladder:
    """Compare two probes rung by rung; `pair.put_back` names the rungs that an experiment imposed."""
    rounding = other_kernels(pair)
    first_bit = origin(pair)
    found = sorted(_independent(pair), key=position)
    dependent = _proven(pair, next(_dependent(pair), None))
    if first_bit is not None and _is_root(pair, first_bit, dependent, rounding=bool(rounding)):
        dependent = first_bit
    formula = portable(pair)
    if formula is not None and (dependent is None or position(formula) < position(dependent)):
        dependent = formula
    if dependent is not None:
        found = sorted((_from_where_it_tells(one, dependent) for one in found), key=position)
    if dependent is not None and not any(position(one) <= position(dependent) for one in found):
        found = sorted([*found, dependent], key=position)
    if found and _is_first_bit(found[0], first_bit):
        found[0] = replace(found[0], is_first_bit=True)
    return Ladder(tuple(_distinct(found)), rounding, equal=first_bit is None and not found, proven=proven_steps(pair))


def _proven(pair: Pair, dependent: Mismatch | None) -> Mismatch | None:
    """A break by numbers where the portable legs are equal: no formula differs, so that no `operator` is to blame."""
    if dependent is None or dependent.at.step is None or dependent.at.step >= proven_steps(pair):
        return dependent
    left = tuple(one for one in dependent.suspicions if one.code != "operator")
    return replace(dependent, suspicions=left) if left else dependent


def _from_where_it_tells(one: Mismatch, dependent: Mismatch) -> Mismatch:
    """A loss by another function is off at every step, also where small logits hide it: gradients there follow it."""
    hidden = one.rung == "loss" and dependent.at.step is not None and (one.at.step or 0) > dependent.at.step
    below = RUNGS.index(dependent.rung) > RUNGS.index("loss")
    return replace(one, since=dependent.at.step) if hidden and below else one


def _is_first_bit(one: Mismatch, first_bit: Mismatch | None) -> bool:
    """Return whether all evidence above `one` is equal to the bit; `first_bit` is the first difference of bits."""
    if first_bit is None or position(one) < position(first_bit):
        return True
    # Within these rungs, tensors stand in the order of execution.
    same_tensor = one.rung not in ("forward", "gradient") or one.at.at == first_bit.at.at
    return position(one) == position(first_bit) and same_tensor


def _is_root(pair: Pair, first_bit: Mismatch, dependent: Mismatch | None, *, rounding: bool) -> bool:
    """Whether the first differing bit is the cause's own place: it is no benign rounding."""
    if not rounding:
        return dependent is None or position(first_bit) < position(dependent)
    if dependent is None or first_bit.at.step is None:
        return False
    unmeasured = first_bit.at.step not in pair.tap_steps
    return unmeasured and position(first_bit) < position(dependent)


def _independent(pair: Pair) -> Iterator[Mismatch]:
    """Breaks that no other rung can have brought about, each at its first step."""
    found = data(pair) if "data" not in pair.put_back else []
    yield from found
    known = frozenset(name for one in found for name in one.suspicions[0].names)
    whole = {
        "architecture": architecture(pair), "weights": weights(pair), "frozen": frozen(pair),
        "settings": settings(pair), "device": device(pair),
    }  # fmt: skip
    yield from (one for name, one in whole.items() if one is not None and name not in pair.put_back)
    per_step: dict[str, Callable[[int], Mismatch | None]] = {
        "batch": lambda step: batch(pair, step, known),
        "rng": lambda step: rng(pair, step) if step == 0 else None,
        "dtype": lambda step: dtypes(pair, step),
        "loss": lambda step: loss(pair, step),
        "clipped": lambda step: clipping(pair, step),
        "schedule": lambda step: schedule(pair, step),
    }
    for name, rung in per_step.items():
        if name in pair.put_back:
            continue
        yield from _first(rung(step) for step in range(len(pair.common)))
    if "evaluation" not in pair.put_back and not found:
        yield from _first(iter([evaluation(pair)]))


def _first(mismatches: Iterator[Mismatch | None]) -> Iterator[Mismatch]:
    one = next((found for found in mismatches if found is not None), None)
    if one is not None:
        yield one


def _dependent(pair: Pair) -> Iterator[Mismatch]:
    """Breaks by numbers, in order: all but the first may follow from the first."""
    for step in range(len(pair.common)):
        tapped = step in pair.tap_steps
        rungs = {
            "rng": rng(pair, step) if step else None,
            "forward": forward(pair, step) or forward_numbers(pair, step),
            "gradient": gradient(pair, step) if tapped else gradient_numbers(pair, step),
            "optimizer": update(pair, step),
        }
        yield from (one for name, one in rungs.items() if one is not None and name not in pair.put_back)
    if "evaluation" not in pair.put_back:
        numbers = evaluation_numbers(pair)
        if numbers is not None:
            yield numbers


def position(one: Mismatch) -> tuple[float, int]:
    """Where a break stands in the order of consequence: its step, then its rung."""
    if one.rung in ("architecture", "weights"):
        return (0, RUNGS.index(one.rung))
    if one.rung == "data":
        read = one.at.step if one.at.step is not None else (0 if one.at.at == "tokenizer" else math.inf)
        return (read, 0)
    shown = one.at.step if one.since is None else one.since
    return (math.inf if shown is None else shown, RUNGS.index(one.rung))


def _distinct(found: list[Mismatch]) -> Iterator[Mismatch]:
    """One break for each cause: two rungs that both say `precision` speak of one."""
    seen = set()
    for one in found:
        code = one.suspicions[0].code
        if code not in seen:
            seen.add(code)
            yield one
