"""Detectors of a sudden loss, a creep and a recent change; each only asks a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.history.limits import Allowed, ask_limit, cusum_height
from plumbline.history.quantiles import t_quantile
from plumbline.history.reference import WINSOR, Reference
from plumbline.history.scan import LEAST_SIDE, max_chance, rank_scan

__all__ = ["Ask", "asks"]

Values = NDArray[np.float64]
Kind = Literal["sudden", "creep", "change", "anchor"]

ALLOWANCE = 0.5
"""Allowance of the CUSUM in SD: half of the smallest shift to detect."""
_WINDOWS = (16, 32, 64)
_RECENT = 0.5
"""SD by which the mean of the last three nights must be worse before windows are scanned."""
_REACH = 90
"""Number of nights in the CUSUM's window."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Question of a detector: is the series worse since index `since`?"""

    kind: Kind
    since: int
    score: float
    limit: float


def asks(values: Values, start: int, reference: Reference, allowed: Allowed) -> tuple[Ask, ...]:
    """Return the detectors' questions about the last value; finite values of one level, higher is worse.

    The CUSUM starts at `start`: earlier nights have already been answered.
    """
    found = (*_sudden(values, reference, allowed), *_creep(values, start, reference, allowed))
    return (*found, *_change(values, reference, allowed))


def _sudden(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Ask]:
    score = (float(values[-1]) - reference.centre) / reference.predicted()
    limit = t_quantile(allowed.ask_chance, round(reference.freedom)) if reference.freedom < 30 else ask_limit(
        allowed.ask_chance
    )  # fmt: skip
    if score > limit:
        yield Ask("sudden", len(values) - 1, score, limit)


def _creep(values: Values, start: int, reference: Reference, allowed: Allowed) -> Iterator[Ask]:
    """Yield the question of Page's CUSUM, adjusted for centre error and autocorrelation."""
    first = max(start, len(values) - _REACH, 0)
    scores = (values[first:] - reference.centre) / reference.spread
    allowance = ALLOWANCE + reference.error / reference.spread + reference.lean
    sums = np.cumsum(np.minimum(np.maximum(scores, -WINSOR), WINSOR) - allowance)
    lows = np.minimum(np.minimum.accumulate(sums), 0.0)
    height = float(sums[-1] - lows[-1])
    rho = reference.rho
    limit = cusum_height(allowed.ask_chance, round(allowance, 2)) * (1 + rho) / (1 - rho)
    if height > limit:
        below = np.flatnonzero(sums <= lows)
        yield Ask("creep", first + (int(below[-1]) + 1 if len(below) else 0), height, limit)


def _change(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Ask]:
    """Yield the question of the shortest window that ends tonight with a change."""
    if float(values[-3:].mean()) < reference.centre + _RECENT * reference.spread:
        return
    for length in _WINDOWS:
        if len(values) < length:
            return
        z = rank_scan(values[None, -length:])[0]
        place = int(z.argmax())
        score = float(z[place])
        if score > 3.0 and max_chance(score, length, reference.rho) / 2 <= allowed.ask_chance / len(_WINDOWS):
            yield Ask("change", len(values) - length + LEAST_SIDE + place, score, _limit(length, reference, allowed))
            return


def _limit(length: int, reference: Reference, allowed: Allowed) -> float:
    """Return the z of the allowed chance, for display beside the score."""
    low, high = 1.5, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        rare = max_chance(middle, length, reference.rho) / 2 <= allowed.ask_chance / len(_WINDOWS)
        low, high = (low, middle) if rare else (middle, high)
    return high
