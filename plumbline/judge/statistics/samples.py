"""Sample statistics: quantiles, autocorrelation, and scores of possible splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.statistics.distributions import MEDIAN_DEVIATION, normal_quantile
from plumbline.schema import limits

Values = NDArray[np.float64]

HUGE = 1e75
"""Largest value that is counted: squares of larger values overflow in sums."""


def quantile(values: Values, share: float = 0.5) -> float:
    """Return a quantile (default: median); faster than NumPy for few values."""
    ordered, place = np.sort(values), share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return float(ordered[below] * (below + 1 - place) + ordered[above] * (place - below))


def autocorrelation(values: Values) -> float:
    """Return the detrended lag-1 autocorrelation, in [0, 0.9]; 0 if insignificant."""
    if len(values) < limits.ENOUGH_NIGHTS:
        return 0.0
    # With a line removed, the sample's value is too small by about (2 + 4 rho) / n.
    sample, corrected = _autocorrelations(values, [], added=2, lost=4)
    return corrected if sample > 1 / math.sqrt(len(values)) else 0.0


def autocorrelation_within(values: Values, places: Sequence[int]) -> float:
    """Return the lag-1 autocorrelation within segments, in [0, 0.9].

    Means and places that fit the noise take (1 + 3 rho) / n, and (3.3 + 4.5 rho) / n for each place, which are added.
    """
    return _autocorrelations(values, places, added=1 + 3.3 * len(places), lost=3 + 4.5 * len(places))[1]


def _autocorrelations(values: Values, places: Sequence[int], *, added: float, lost: float) -> tuple[float, float]:
    """Return the lag-1 autocorrelation within segments, raw and bias-corrected.

    Values are winsorised about their segment's median; `added` and `lost` are what the fit of the segments takes from
    the sum of products and from the number of values.
    """
    residuals = np.concatenate([part - quantile(part) for part in np.split(values, places)])
    width = limits.WINSOR * MEDIAN_DEVIATION * quantile(np.abs(residuals))
    parts = [part - part.mean() for part in np.split(np.clip(residuals, -width, width), places)]
    square, free = math.fsum(float(part @ part) for part in parts), len(values) - lost
    if square <= 0 or free <= 0:
        return 0.0, 0.0 if square <= 0 else limits.HIGHEST_RHO
    sample = math.fsum(float(part[1:] @ part[:-1]) for part in parts) / square
    return sample, min(max((sample * len(values) + added) / free, 0.0), limits.HIGHEST_RHO)


def split_scores(values: Values, splits: NDArray[np.intp], *, least: float, most: int | None = None) -> Values:
    """Return the two-sample t of each split: values after against before.

    `least` is the minimum spread within both, and `most` the maximum number of first values that count as before.
    """
    num, (sums, squares) = len(values), (np.concatenate([[0.0], np.cumsum(terms)]) for terms in (values, values**2))
    before, after = np.minimum(splits, most or num), num - splits
    centre, newest = sums[before] / before, (sums[num] - sums[splits]) / after
    inner = squares[before] - before * centre**2 + squares[num] - squares[splits] - after * newest**2
    spread = np.maximum(np.sqrt(np.maximum(inner, 0.0) / (before + after - 2)), least)
    return np.asarray((newest - centre) / (spread * np.sqrt(1 / before + 1 / after)))


def rank_scores(windows: Values) -> Values:
    """Return two-sided rank-based z scores of every split, per window.

    `windows` is [rows, length]. Column `i` splits before index `SIDE_NIGHTS + i`. Equal values share their mean score.
    """
    length = windows.shape[1]
    order = np.argsort(windows, axis=1, kind="stable")
    scores, ordered = np.empty_like(windows), np.take_along_axis(windows, order, axis=1)
    np.put_along_axis(scores, order, _normal_scores(length)[None], axis=1)
    for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        _, where = np.unique(windows[row], return_inverse=True)
        scores[row] = (np.bincount(where, weights=scores[row]) / np.bincount(where))[where]
    left = np.arange(limits.SIDE_NIGHTS, length - limits.SIDE_NIGHTS + 1)
    return np.asarray(np.abs(np.cumsum(scores, axis=1)[:, left - 1]) / np.sqrt(left * (length - left) / (length - 1)))


@lru_cache(maxsize=512)
def _normal_scores(length: int) -> Values:
    scores = np.array([normal_quantile((rank + 0.5) / length) for rank in range(length)])
    return np.asarray(scores / scores.std())
