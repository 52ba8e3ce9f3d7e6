"""Detectors of sudden losses, creeps and recent changes.

A detection is only a reason for an experiment, not an alarm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.history.limits import Allowed, cusum_height, detection_limit
from plumbline.history.quantiles import t_quantile
from plumbline.history.reference import WINSOR, Reference
from plumbline.history.scan import LEAST_SIDE, max_chance, rank_scan

__all__ = ["Detection", "detect"]

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
class Detection:
    """Detector's report that a series is worse since `since`.

    `since` is an index; `score` exceeds `limit`.
    """

    kind: Kind
    since: int
    score: float
    limit: float


def detect(values: Values, start: int, reference: Reference, allowed: Allowed) -> tuple[Detection, ...]:
    """Return what the detectors report about the last value.

    `values` are finite and of one level; higher is worse. The CUSUM starts at `start`: experiments have already tested
    the earlier nights.
    """
    return (
        *_sudden(values, reference, allowed),
        *_creep(values, start, reference, allowed),
        *_change(values, reference, allowed),
    )


def _sudden(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    score = (float(values[-1]) - reference.centre) / reference.predicted()
    chance = allowed.detection_chance
    limit = t_quantile(chance, round(reference.freedom)) if reference.freedom < 30 else detection_limit(chance)
    if score > limit:
        yield Detection("sudden", len(values) - 1, score, limit)


def _creep(values: Values, start: int, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    """Detect a creep by Page's CUSUM.

    The allowance is adjusted for the centre's error and autocorrelation.
    """
    first = max(start, len(values) - _REACH, 0)
    scores = (values[first:] - reference.centre) / reference.spread
    allowance = ALLOWANCE + reference.error / reference.spread + reference.lean
    sums = np.cumsum(np.minimum(np.maximum(scores, -WINSOR), WINSOR) - allowance)
    lows = np.minimum(np.minimum.accumulate(sums), 0.0)
    height = float(sums[-1] - lows[-1])
    rho = reference.rho
    limit = cusum_height(allowed.detection_chance, round(allowance, 2)) * (1 + rho) / (1 - rho)
    if height > limit:
        below = np.flatnonzero(sums <= lows)
        yield Detection("creep", first + (int(below[-1]) + 1 if len(below) else 0), height, limit)


def _change(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    """Detect a change in the shortest window that ends tonight."""
    if float(values[-3:].mean()) < reference.centre + _RECENT * reference.spread:
        return
    for length in _WINDOWS:
        if len(values) < length:
            return
        z = rank_scan(values[None, -length:])[0]
        place = int(z.argmax())
        score = float(z[place])
        if score > 3.0 and max_chance(score, length, reference.rho) / 2 <= allowed.detection_chance / len(_WINDOWS):
            yield Detection(
                "change", len(values) - length + LEAST_SIDE + place, score, _limit(length, reference, allowed)
            )
            return


def _limit(length: int, reference: Reference, allowed: Allowed) -> float:
    """Return the z of the allowed chance, for display only."""
    low, high = 1.5, 40.0
    for _ in range(40):
        middle = (low + high) / 2
        rare = max_chance(middle, length, reference.rho) / 2 <= allowed.detection_chance / len(_WINDOWS)
        low, high = (low, middle) if rare else (middle, high)
    return high
