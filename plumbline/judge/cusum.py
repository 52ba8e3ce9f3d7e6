"""CUSUM: sums small deviations up, so that a creep shows which no single night would show.

`docs/MATH.md` states its false alarms, simulated by `bench/judge/false_alarms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Creep", "autocorrelation", "creep", "threshold"]

ALLOWANCE = 0.75
"""Deviations below this many standard deviations are no news."""

_THRESHOLDS = ((0.0, 3.9), (0.3, 6.0), (0.5, 9.0), (0.7, 14.0))
"""By lag-1 autocorrelation: nights that resemble each other add up without anything having changed."""

_LEAST_NIGHTS = 8
"""Fewer nights tell no mean and spread to hold the later ones against."""


@dataclass(frozen=True, slots=True)
class Creep:
    """The sum crossed its threshold at `index`, having grown since `since`."""

    index: int
    since: int
    direction: int
    height: float
    threshold: float


def threshold(rho: float) -> float:
    """The height that a sum must reach, for nights with this autocorrelation; between the table's rows, a line."""
    points, heights = zip(*_THRESHOLDS, strict=True)
    return float(np.interp(max(rho, 0.0), points, heights))


def autocorrelation(values: Sequence[float]) -> float:
    """Lag-1 autocorrelation; 0 where there are too few values or no spread."""
    array = np.asarray(values, dtype=np.float64)
    centred = array - array.mean() if len(array) else array
    square = float(centred @ centred)
    return float(centred[1:] @ centred[:-1]) / square if len(array) > 2 and square > 0 else 0.0


def creep(values: Sequence[float], *, calibration: int = _LEAST_NIGHTS, rho: float | None = None) -> Creep | None:
    """The first alarm after the first `calibration` values, which say what is usual; `None` if there is none."""
    array = np.asarray(values, dtype=np.float64)
    if calibration < _LEAST_NIGHTS or len(array) <= calibration or not np.isfinite(array).all():
        return None
    usual = array[:calibration]
    spread = float(usual.std(ddof=1))
    if spread <= 0 or not math.isfinite(spread):
        return None
    height = threshold(autocorrelation(usual.tolist()) if rho is None else rho)
    sums, since = [0.0, 0.0], [calibration, calibration]
    for index, value in enumerate(array[calibration:], start=calibration):
        score = (float(value) - float(usual.mean())) / spread
        for side, sign in enumerate((1, -1)):
            if sums[side] == 0.0:
                since[side] = index
            sums[side] = max(0.0, sums[side] + sign * score - ALLOWANCE)
            if sums[side] > height:
                return Creep(index, since[side], sign, sums[side], height)
    return None
