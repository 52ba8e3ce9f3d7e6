"""Noise floor: a metric's variation between unchanged runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from plumbline import limits
from plumbline.history.allowed import Allowed
from plumbline.history.quantiles import t_quantile
from plumbline.history.reference import Reference, autocorrelation, reference_of
from plumbline.schema.base import Model


class NoiseFloor(Model):
    """Variation of a metric between unchanged runs."""

    runs: int = Field(ge=0)
    mean: float | None = None
    """Median, robust to single outliers."""
    relative_sd: float | None = None
    """Robust; `None` below three runs."""
    autocorrelation: float = 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor:
    """Return the robust noise floor of a metric.

    Values that are not finite and positive are skipped.
    """
    kept = np.array([value for value in values if math.isfinite(value) and value > 0])
    if not len(kept):
        return NoiseFloor(runs=0)
    scores = np.log(kept)
    reference = reference_of(scores, floor=1e-6, is_whole=True)
    middle = float(np.median(kept))
    if len(kept) < limits.SIDE_NIGHTS:
        return NoiseFloor(runs=len(kept), mean=middle)
    spread = reference.spread if reference is not None else float(scores.std(ddof=1))
    return NoiseFloor(runs=len(kept), mean=middle, relative_sd=spread, autocorrelation=autocorrelation(scores))


def recommended_drop(reference: Reference, allowed: Allowed) -> float:
    """Return the relative drop that chance rarely exceeds.

    Between two unchanged runs it is as rare as a false detection. z * sqrt(2) * SD: both runs vary. z is Student's, as
    the SD is estimated from few nights.
    """
    z = t_quantile(allowed.detection_chance, round(reference.freedom))
    return -math.expm1(-z * math.sqrt(2) * reference.spread)
