"""Noise floor of a platform: the variation of a metric between unchanged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from plumbline.history.limits import Allowed
from plumbline.history.quantiles import t_quantile
from plumbline.history.reference import Reference, autocorrelation, reference_of
from plumbline.schema.base import Model

__all__ = ["NoiseFloor", "noise_floor", "recommended_drop"]

_LEAST = 3


class NoiseFloor(Model):
    """Variation of a metric between unchanged runs."""

    runs: int = Field(ge=0)
    mean: float | None = None
    """Median, robust to single outliers."""
    relative_sd: float | None = None
    """Robust; `None` below three runs."""
    autocorrelation: float = 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor:
    """Return the robust noise floor; skip values that are not finite and positive."""
    kept = np.array([value for value in values if math.isfinite(value) and value > 0])
    if not len(kept):
        return NoiseFloor(runs=0)
    scores = np.log(kept)
    found = reference_of(scores, floor=1e-6)
    middle = float(np.median(kept))
    if len(kept) < _LEAST:
        return NoiseFloor(runs=len(kept), mean=middle)
    spread = found.spread if found is not None else float(scores.std(ddof=1))
    return NoiseFloor(runs=len(kept), mean=middle, relative_sd=spread, autocorrelation=autocorrelation(scores))


def recommended_drop(reference: Reference, allowed: Allowed) -> float:
    """Return the relative drop between two runs that chance shows as rarely as a detector asks.

    z * sqrt(2) * SD: both runs vary. z is Student's, as the SD is estimated from few nights.
    """
    z = t_quantile(allowed.ask_chance, round(reference.freedom))
    return -math.expm1(-z * math.sqrt(2) * reference.spread)
