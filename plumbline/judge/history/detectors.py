"""Detectors of sudden losses and creeps.

A detection is only a reason for an experiment, not an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed, detection_limit
from plumbline.judge.history.changepoints import autocorrelation_within
from plumbline.judge.history.quantiles import t_quantile
from plumbline.judge.history.reference import Reference
from plumbline.schema import limits

Values = NDArray[np.float64]
Kind = Literal["sudden", "creep", "limit", "anchor"]

_SPLITS = 2
"""Effective number of splits: the largest of their statistics exceeds a level about so many times as often as one."""


@dataclass(frozen=True, slots=True)
class Detection:
    """Detector's report that a series is worse: `score` exceeds `limit`. `onset` dates the loss."""

    kind: Kind
    score: float
    limit: float
    begin: int | None = None
    """First night of a creep: no night from it on is of the reference."""


def detect(values: Values, start: int, reference: Reference, allowed: Allowed) -> tuple[Detection, ...]:
    """Return what the detectors report about the last value.

    `values` are finite and of one level; higher is worse. A creep begins at `start` or later: experiments have already
    tested the earlier nights.
    """
    return (
        *_limit(values, reference, allowed),
        *_sudden(values, reference, allowed),
        *_creep(values, start, reference, allowed),
    )


def _limit(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    """Report a loss of throughput beyond the team's limit, or beyond half of it while few nights know little."""
    lost = float(values[-1]) - reference.centre
    limit = allowed.drop if reference.count >= limits.ENOUGH_NIGHTS else allowed.drop / 2
    if allowed.is_limited and lost > limit:
        yield Detection("limit", lost, limit)


def _sudden(values: Values, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    score = (float(values[-1]) - reference.centre) / reference.predicted()
    chance = allowed.detection_chance
    limit = t_quantile(chance, round(reference.freedom)) if reference.freedom < 30 else detection_limit(chance)
    if score > limit:
        yield Detection("sudden", score, limit)


def _creep(values: Values, start: int, reference: Reference, allowed: Allowed) -> Iterator[Detection]:
    """Detect a creep or a small step by the largest two-sample t statistic over all splits (Hawkins et al. 2003).

    The nights from each split on are compared with those before it, not with the reference's centre: few nights know
    their centre badly, and a growing reference takes in a loss that no night has shown.
    """
    num = len(values)
    splits = np.arange(max(start, limits.LEAST_NIGHTS, num - limits.REACH_NIGHTS), num)
    if not len(splits):
        return
    off = np.clip((values - reference.centre) / reference.spread, -limits.WINSOR, limits.WINSOR)
    sums, squares = (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (off, off**2))
    before, after = np.minimum(splits, limits.MOST_NIGHTS), num - splits
    centre, newest = sums[before] / before, (sums[num] - sums[splits]) / after
    inner = squares[before] - before * centre**2 + squares[num] - squares[splits] - after * newest**2
    # The spread of few nights may be too small by chance.
    spread = np.maximum(np.sqrt(np.maximum(inner, 0.0) / (before + after - 2)), limits.LEAST_SPREAD)
    scores = (newest - centre) / (spread * np.sqrt(1 / before + 1 / after))
    best = int(scores.argmax())
    rho = min(reference.rho, autocorrelation_within(off, [int(splits[best])])) if reference.rho else 0.0
    independent = (1 - rho) / (1 + rho)
    freedom = max(round((before[best] + after[best]) * independent) - 2, 2)
    limit = t_quantile(allowed.detection_chance / _SPLITS, freedom)
    score = float(scores[best]) * math.sqrt(independent)
    if score > limit:
        yield Detection("creep", score, limit, int(splits[best]))


@dataclass(frozen=True, slots=True)
class Onset:
    """Start of a loss, its shape, and its size tonight.

    `index` is the first night of the loss.
    """

    index: int
    shape: Literal["step", "creep"]
    size: float


def onset(values: Values, reference: Reference) -> Onset:
    """Fit a step and a ramp; return the better one.

    Both begin at the reference's centre; every night is tried as the first. Least squares on winsorised deviations;
    `values` are one level's nights, finite, tonight last.
    """
    first = max(len(values) - limits.REACH_NIGHTS, 0)
    off = values[first:] - reference.centre
    width = max(
        4 * reference.spread, abs(float(np.median(off[-limits.SIDE_NIGHTS :]))) + limits.WINSOR * reference.spread
    )
    off = np.clip(off, -width, width)
    # Sums over the nights from each start to tonight.
    tail = off[::-1].cumsum()[::-1]
    count = np.arange(len(off), 0, -1, dtype=np.float64)
    step_gain = np.where(tail > 0, tail**2 / count, 0.0)
    weighted = (np.cumsum(tail[::-1]))[::-1]  # sum of (t - t0 + 1) * off, for every start t0
    squares = count * (count + 1) * (2 * count + 1) / 6
    ramp_gain = np.where((weighted > 0) & (count >= 4), weighted**2 / squares, 0.0)
    step, ramp = int(step_gain.argmax()), int(ramp_gain.argmax())
    if ramp_gain[ramp] > step_gain[step]:
        return Onset(first + ramp, "creep", float(weighted[ramp] / squares[ramp] * count[ramp]))
    return Onset(first + step, "step", float(tail[step] / count[step]))
