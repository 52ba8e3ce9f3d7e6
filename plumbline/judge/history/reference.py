"""Reference of a series: robust centre and spread.

Both have their standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.quantiles import MEDIAN_DEVIATION, MEDIAN_ERROR, t_quantile
from plumbline.schema import limits

Values = NDArray[np.float64]

HUGE = 1e75
"""Largest value that is counted: squares of larger values overflow in sums."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Centre and spread of one level; higher is worse."""

    centre: float
    spread: float
    """SD of one night, robust: it includes what varies between nights."""
    count: int
    rho: float
    """Lag-1 autocorrelation, 0 or more."""
    later: int = 0
    """Number of later nights in the spread."""

    @property
    def share(self) -> float:
        """Return the share of nights that counts as independent."""
        return (1 - self.rho) / (1 + self.rho)

    @property
    def effective(self) -> float:
        """Return the effective number of independent nights."""
        return max(self.count * self.share, 1.0)

    @property
    def error(self) -> float:
        """Return the standard error of the centre."""
        return MEDIAN_ERROR * self.spread / math.sqrt(self.effective)

    @property
    def freedom(self) -> float:
        """Return the degrees of freedom of the robust spread.

        They are 0.6 of an SD's.
        """
        return max(0.6 * (self.effective - 1), 1.0) + 0.6 * max(self.later - 1, 0)

    def predicted(self, num_nights: float = 1.0) -> float:
        """Return the SD of a future mean about the centre.

        The mean is that of `num_nights` nights.
        """
        return math.sqrt(self.spread**2 / num_nights + self.error**2)

    def width(self) -> float:
        """Return half of the interval of a single night's change."""
        return t_quantile(limits.ALPHA / 2, round(self.freedom)) * self.predicted()

    def mirrored(self) -> Reference:
        """Return the reference of the negative scores, of which a gain is a loss."""
        return replace(self, centre=-self.centre)

    def pooled(self, later: Values) -> Reference:
        """Return the reference with the spread of these nights about their own median as well.

        Few nights do not know their own spread.
        """
        if len(later) < limits.LEAST_NIGHTS:
            return self
        own = _spread(np.sort(later), _middle(np.sort(later)))
        squares = (self.count * self.spread**2 + len(later) * own**2) / (self.count + len(later))
        return replace(self, spread=math.sqrt(squares), later=len(later))


def reference_of(
    values: Values, *, floor: float, prior: Reference | None = None, is_whole: bool = False
) -> Reference | None:
    """Return the reference of one level, oldest night first.

    `None` if too few nights are finite. With `is_whole` the newest nights count, too: no loss has begun in
    them. `floor` is the minimum spread, also of a constant series. With `prior`, the reference of the level before, one
    night is enough: the spread is that level's until the new level has its own, and the centre's error is as wide.
    """
    kept = values[np.isfinite(values)]
    if prior is not None and 0 < len(kept) < limits.OWN_NIGHTS:
        return replace(prior, centre=_middle(np.sort(kept)), count=len(kept))
    if len(kept) < limits.LEAST_NIGHTS:
        return None
    settled = len(kept) if is_whole else max(len(kept) - limits.LAG_NIGHTS, limits.FIRST_NIGHTS)
    kept = kept[: min(limits.MOST_NIGHTS, settled)]
    centre = _middle(np.sort(kept))
    level = _without_trend(kept)
    spread = max(_spread(np.sort(level), _middle(np.sort(level))), floor)
    return Reference(centre, spread, len(kept), autocorrelation(level))


def _without_trend(values: Values) -> Values:
    """Remove a straight line: a creep is neither noise nor autocorrelation."""
    if len(values) < limits.ENOUGH_NIGHTS:
        return values
    time = np.arange(len(values)) - (len(values) - 1) / 2
    return np.asarray(values - time * float(time @ values) / float(time @ time))


def _middle(ordered: Values) -> float:
    half = len(ordered) // 2
    return float(ordered[half]) if len(ordered) % 2 else float(ordered[half - 1] + ordered[half]) / 2


def _spread(ordered: Values, centre: float) -> float:
    """Return the larger of two robust spreads.

    They are the scaled MAD and the scaled 5-95% range.
    """
    count = len(ordered)
    mad = MEDIAN_DEVIATION * _middle(np.sort(np.abs(ordered - centre))) * (1 + 0.8 / count)
    if count < limits.ENOUGH_NIGHTS:
        return max(mad, float(ordered.std(ddof=1)))
    low, high = (0.05 * (count - 1), 0.95 * (count - 1))
    return max(mad, (_between(ordered, high) - _between(ordered, low)) / 3.29)


def _between(ordered: Values, place: float) -> float:
    below = int(place)
    share = place - below
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] * (1 - share) + ordered[above] * share)


def autocorrelation(values: Values) -> float:
    """Return the lag-1 autocorrelation of one level without its line, in [0, 0.9]; less than its noise is none."""
    if len(values) < limits.ENOUGH_NIGHTS:
        return 0.0
    # With a line removed, the sample's value is too small by about (2 + 4 rho) / n.
    sample, corrected = autocorrelations(values, [], added=2, lost=4)
    return corrected if sample > 1 / math.sqrt(len(values)) else 0.0


def autocorrelations(values: Values, places: Sequence[int], *, added: float, lost: float) -> tuple[float, float]:
    """Return the lag-1 autocorrelation within segments, as the sample has it and corrected, the latter in [0, 0.9].

    The segments begin at `places`. Values are winsorised about their segment's median; `added` and `lost` are what the
    fit of the segments takes from the sum of products and from the number of values.
    """
    residuals = np.concatenate([part - _middle(np.sort(part)) for part in np.split(values, places)])
    width = limits.WINSOR * MEDIAN_DEVIATION * _middle(np.sort(np.abs(residuals)))
    parts = [part - part.mean() for part in np.split(np.clip(residuals, -width, width), places)]
    square, free = math.fsum(float(part @ part) for part in parts), len(values) - lost
    if square <= 0 or free <= 0:
        return 0.0, 0.0 if square <= 0 else limits.HIGHEST_RHO
    sample = math.fsum(float(part[1:] @ part[:-1]) for part in parts) / square
    return sample, min(max((sample * len(values) + added) / free, 0.0), limits.HIGHEST_RHO)
