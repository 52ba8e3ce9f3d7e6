"""The noise floor of a platform, and the limit that keeps its false alarms rare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from pydantic import Field

from plumbline.judge.cusum import autocorrelation
from plumbline.schema.base import Model

__all__ = ["NoiseFloor", "noise_floor", "recommended_drop"]

_LEAST = 3
_NIGHTS_A_YEAR = 365


class NoiseFloor(Model):
    """How much one number per run varies from run to run where nothing changed."""

    runs: int = Field(ge=0)
    mean: float | None = None
    relative_sd: float | None = None
    """`None` below three runs: two tell no spread."""
    autocorrelation: float = 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor:
    """The floor of these runs; not finite ones do not count."""
    kept = [value for value in values if math.isfinite(value) and value > 0]
    if not kept:
        return NoiseFloor(runs=0)
    mean = float(np.mean(kept))
    spread = float(np.std(kept, ddof=1)) / mean if len(kept) >= _LEAST else None
    return NoiseFloor(runs=len(kept), mean=mean, relative_sd=spread, autocorrelation=autocorrelation(kept))


def recommended_drop(floor: NoiseFloor, *, platforms: int, false_alarms_a_year: float) -> float | None:
    """The least drop that chance alone shows `false_alarms_a_year` times in a year of nights over all platforms.

    A drop counts only if an independent rerun shows it too, and both are held against one noisy baseline. With few
    runs the spread itself is uncertain: it is widened to the upper end of its 90% range.
    """
    if floor.relative_sd is None:
        return None
    nights = _NIGHTS_A_YEAR * max(platforms, 1)
    once = math.sqrt(min(false_alarms_a_year / nights, 0.25))
    widened = floor.relative_sd * math.sqrt((floor.runs - 1) / _chi_square_low(floor.runs - 1))
    return NormalDist().inv_cdf(1 - once) * widened * math.sqrt(2)


def _chi_square_low(freedom: int) -> float:
    """The 5% quantile of chi-square, by Wilson and Hilferty."""
    ninth = 2 / (9 * freedom)
    return float(max(freedom * (1 - ninth - 1.645 * math.sqrt(ninth)) ** 3, 0.05))
