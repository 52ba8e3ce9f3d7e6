"""Which packages of an upgrade make training drift: delta debugging over the changed packages.

Source of the method: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28(2), 2002
(ddmin). A subset that cannot run at all (a package without the version that it needs), or whose training gives no
verdict, is `broken`: it says nothing, so it is neither narrowed down to nor counted among what passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

__all__ = ["Bisection", "Outcome", "bisect"]

Outcome = Literal["pass", "drift", "broken"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bisection(Generic[T]):
    """The smallest set found that drifts by itself, and every trial that led there."""

    culprits: tuple[T, ...]
    trials: tuple[tuple[tuple[T, ...], Outcome], ...]
    complement: Outcome
    """All changes but the culprits: `pass` where nothing else drifts, `broken` where that is not known."""


def bisect(changes: Sequence[T], trial: Callable[[tuple[T, ...]], Outcome]) -> Bisection[T]:
    """Reduce `changes`, which drift together, to a set that drifts and of which no part is known to.

    `trial` runs the training with just those changes applied; it is never asked twice about one set.
    """
    known: dict[tuple[T, ...], Outcome] = {(): "pass", tuple(changes): "drift"}

    def drifts(subset: tuple[T, ...]) -> bool:
        if subset not in known:
            known[subset] = trial(subset)
        return known[subset] == "drift"

    culprits = _ddmin(tuple(changes), drifts)
    rest = tuple(change for change in changes if change not in culprits)
    drifts(rest)
    trials = tuple((subset, outcome) for subset, outcome in known.items() if subset)
    return Bisection(culprits, trials, known[rest])


def _ddmin(changes: tuple[T, ...], drifts: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    pieces = 2
    while len(changes) > 1:
        size = -(-len(changes) // pieces)
        chunks = [changes[start : start + size] for start in range(0, len(changes), size)]
        rests = [tuple(change for change in changes if change not in chunk) for chunk in chunks]
        found = next((chunk for chunk in chunks if drifts(chunk)), None)
        if found is not None:
            changes, pieces = found, 2
            continue
        found = next((rest for rest in rests if drifts(rest)), None) if len(chunks) > 2 else None
        if found is not None:
            changes, pieces = found, max(pieces - 1, 2)
        elif pieces >= len(changes):
            break
        else:
            pieces = min(2 * pieces, len(changes))
    return changes
