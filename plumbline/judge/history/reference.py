"""Reference statistics of comparable nights: centre, spread, autocorrelation, standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from plumbline.judge.statistics.distributions import MEDIAN_DEVIATION, MEDIAN_ERROR
from plumbline.judge.statistics.samples import HUGE, Values, autocorrelation, quantile
from plumbline.schema import limits


@dataclass(frozen=True, slots=True)
class Reference:
    """Robust centre and spread of comparable nights; higher is worse."""

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
        """Return the effective fraction of independent nights, given the autocorrelation."""
        return (1 - self.rho) / (1 + self.rho)

    @property
    def error(self) -> float:
        """Return the standard error of the centre."""
        return MEDIAN_ERROR * self.spread / math.sqrt(max(self.count * self.share, 1.0))

    @property
    def freedom(self) -> float:
        """Return the spread's degrees of freedom: 0.6 of an SD's."""
        return max(0.6 * (self.count * self.share - 1), 1.0) + 0.6 * max(self.later - 1, 0)

    def predicted(self, num_nights: float = 1.0) -> float:
        """Return the SD of the mean of future nights about the centre."""
        return math.sqrt(self.spread**2 / num_nights + self.error**2)

    def mirrored(self) -> Reference:
        """Return the reference of negated scores, to test gains as regressions."""
        return replace(self, centre=-self.centre)

    def pooled(self, later: Values) -> Reference:
        """Return the reference with its spread pooled with these newer nights."""
        if len(later) < limits.LEAST_NIGHTS:
            return self
        num, num_later = self.count + self.later, len(later)
        squares = (num * self.spread**2 + num_later * _spread(later) ** 2) / (num + num_later)
        return replace(self, spread=math.sqrt(squares), later=self.later + num_later)


def reference_of(
    values: Values, *, floor: float, prior: Reference | None = None, is_whole: bool = False
) -> Reference | None:
    """Compute reference statistics of nights; `None` if too few are finite.

    With `is_whole` the newest nights count, too: no regression has begun in them. `floor` is the minimum spread. With
    `prior`, the reference of the level before, one night is enough: its spread counts, too, while they are few.
    """
    kept = np.clip(values[np.isfinite(values)], -HUGE, HUGE)
    if prior is not None and 0 < len(kept) < limits.OWN_NIGHTS:
        return replace(prior, centre=quantile(kept), count=len(kept), later=prior.count + prior.later)
    if len(kept) < limits.LEAST_NIGHTS:
        return None
    settled = len(kept) if is_whole else max(len(kept) - limits.LAG_NIGHTS, limits.FIRST_NIGHTS)
    # A machine may become noisier: its spread, unlike its centre, hides no creep.
    kept, later = kept[: min(limits.MOST_NIGHTS, settled)], kept[limits.MOST_NIGHTS : settled][-limits.MOST_NIGHTS :]
    level = kept
    if len(kept) >= limits.ENOUGH_NIGHTS:  # a creep, which a line takes out, is neither noise nor autocorrelation
        time = np.arange(len(kept)) - (len(kept) - 1) / 2
        level = kept - time * float(time @ kept) / float(time @ time)
    own = Reference(quantile(kept), max(_spread(level), floor), len(kept), autocorrelation(level))
    if prior is not None and own.count < limits.ENOUGH_NIGHTS:
        num = min(prior.count, limits.ENOUGH_NIGHTS)
        squares = (own.count * own.spread**2 + num * prior.spread**2) / (own.count + num)
        own = replace(own, spread=math.sqrt(squares), later=num)
    return own.pooled(later)


def _spread(values: Values) -> float:
    """Return the larger of two robust spreads: scaled MAD, and 5-95% range."""
    count = len(values)
    mad = MEDIAN_DEVIATION * quantile(np.abs(values - quantile(values))) * (1 + 0.8 / count)
    if count < limits.ENOUGH_NIGHTS:
        return max(mad, float(values.std(ddof=1)))
    return max(mad, (quantile(values, 0.95) - quantile(values, 0.05)) / 3.29)
