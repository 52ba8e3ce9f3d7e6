"""Detectors of sudden losses and creeps.

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
from plumbline.history.reference import ENOUGH, WINSOR, Reference

Values = NDArray[np.float64]
Kind = Literal["sudden", "creep", "limit", "anchor"]

ALLOWANCE = 0.5
"""Allowance of the CUSUM in SD: half of the smallest shift to detect."""
_REACH = 90
"""Number of nights in the CUSUM's window."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Detector's report that a series is worse: `score` exceeds `limit`. `dating.py` dates the loss."""

    kind: Kind
    score: float
    limit: float


def detect(values: Values, start: int, reference: Reference, allowed: Allowed) -> tuple[Detection, ...]:
    """Return what the detectors report about the last value.

    `values` are finite and of one level; higher is worse. The CUSUM starts at `start`: experiments have already tested
    the earlier nights.
    """
    return (
        *_limit(values, reference, allowed),
        *_sudden(values, reference, allowed),
        *_creep(values, start, reference, allowed),
    )


def _limit(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    """Report a loss of throughput beyond the team's limit, or beyond half of it while few nights know little."""
    lost = float(values[-1]) - reference.centre
    limit = allowed.drop if reference.count >= ENOUGH else allowed.drop / 2
    if allowed.is_limited and lost > limit:
        yield Detection("limit", lost, limit)


def _sudden(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    score = (float(values[-1]) - reference.centre) / reference.predicted()
    chance = allowed.detection_chance
    limit = t_quantile(chance, round(reference.freedom)) if reference.freedom < 30 else detection_limit(chance)
    if score > limit:
        yield Detection("sudden", score, limit)


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
        yield Detection("creep", height, limit)
