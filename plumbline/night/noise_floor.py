"""Noise floor: a metric's variation between unchanged runs, and the resulting limit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.history.segments import MetricHistory
from plumbline.judge.statistics.distributions import t_quantile
from plumbline.judge.statistics.samples import autocorrelation, quantile
from plumbline.schema import limits
from plumbline.schema.base import Model

_MAX_DROP = 0.25
"""Maximum limit that is recommended: a wider one passes the loss of a quarter, whatever the noise is."""
_MAX_NIGHTS = 60


class NoiseFloor(Model):
    """Variation of a metric between unchanged runs."""

    runs: int = Field(ge=0)
    mean: float | None = None
    """Median, robust to single outliers."""
    relative_sd: float | None = None
    """Robust; `None` below three runs."""
    autocorrelation: float = 0.0


def noise_floor(values: Sequence[float]) -> NoiseFloor:
    """Return a metric's robust noise floor, ignoring non-finite and non-positive values."""
    kept = np.array([value for value in values if math.isfinite(value) and value > 0])
    if not len(kept):
        return NoiseFloor(runs=0)
    scores, middle = np.log(kept), quantile(kept)
    if len(kept) < limits.SIDE_NIGHTS:
        return NoiseFloor(runs=len(kept), mean=middle)
    reference = reference_of(scores, floor=1e-6, is_whole=True)
    spread = reference.spread if reference is not None else float(scores.std(ddof=1))
    return NoiseFloor(runs=len(kept), mean=middle, relative_sd=spread, autocorrelation=autocorrelation(scores))


def widest_floor(lines: Sequence[MetricHistory], last: int) -> NoiseFloor:
    """Return the noisiest workload's noise floor in its current segment."""
    floors = []
    for line in lines:
        starts = (boundary.index for boundary in line.boundaries if boundary.what in ("spec", "hardware"))
        values = line.values[max(max(starts, default=0), len(line.values) - last) :]
        floors.append(noise_floor([value for value in values if value is not None]))
    return max(floors, key=lambda floor: (floor.relative_sd or 0.0, floor.runs), default=NoiseFloor(runs=0))


def recommended_drop(reference: Reference, allowed: Allowed) -> float:
    """Return the drop limit that unchanged runs rarely exceed.

    z * sqrt(2) * SD: both runs vary. z is Student's, as the SD is estimated from few nights.
    """
    z = t_quantile(allowed.detection_chance, round(reference.freedom))
    return -math.expm1(-z * math.sqrt(2) * reference.spread)


def recommended_limit(floor: NoiseFloor, allowed: Allowed, runs: int | None = None) -> float | None:
    """Return the recommended limit for this noise and nights' number."""
    if floor.relative_sd is None:
        return None
    return recommended_drop(Reference(0.0, floor.relative_sd, runs or floor.runs, floor.autocorrelation), allowed)


def problem_of(floor: NoiseFloor, limit: float | None, allowed: Allowed) -> str:
    """Return why no limit is recommended, with a hint, or ""."""
    if limit is None:
        return f"a limit needs the throughput of 3 nights; measured: {floor.runs}"
    if limit <= _MAX_DROP:
        return ""
    later = range(floor.runs + 1, _MAX_NIGHTS + 1)
    enough = next((runs for runs in later if (recommended_limit(floor, allowed, runs) or 0.0) <= _MAX_DROP), 0)
    needed = f"about {enough} nights of this noise are needed" if enough else "train on a quieter machine"
    return f"{floor.runs} nights that vary by {floor.relative_sd:.2%} allow no limit up to {_MAX_DROP:.0%}: {needed}"
