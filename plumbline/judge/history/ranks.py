"""Rank statistics of nights, which need no distribution."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.quantiles import normal_quantile
from plumbline.schema import limits

Values = NDArray[np.float64]


def rank_sum_chance(above: int, newer: int, older: int) -> float:
    """Return the exact tail probability of a rank sum.

    It is the chance that the newer value is higher in `above` or more of the pairs (Mann and Whitney 1947).
    """
    return _tails(newer, older)[min(max(above, 0), newer * older)]


@lru_cache(maxsize=256)
def _tails(newer: int, older: int) -> tuple[float, ...]:
    """Return tail probabilities from Gaussian binomial coefficients, exactly."""
    counts = [1] + [0] * (newer * older)
    for step in range(1, newer + 1):
        for place in range(len(counts) - 1, older + step - 1, -1):
            counts[place] -= counts[place - older - step]
        for place in range(step, len(counts)):
            counts[place] += counts[place - step]
    total = math.comb(newer + older, newer)
    tails, rest = [], 0
    for count in reversed(counts):
        rest += count
        tails.append(rest / total)
    return tuple(reversed(tails))


@lru_cache(maxsize=512)
def _scores(length: int) -> Values:
    scores = np.array([normal_quantile((rank + 0.5) / length) for rank in range(length)])
    return np.asarray(scores / scores.std())


@lru_cache(maxsize=512)
def _scales(length: int) -> Values:
    """Return the inverse SD of each split's left sum.

    The sum is that of the scores left of the split.
    """
    left = np.arange(limits.SIDE_NIGHTS, length - limits.SIDE_NIGHTS + 1, dtype=np.float64)
    return np.asarray(1 / np.sqrt(left * (length - left) / (length - 1)))


def rank_scan(windows: Values) -> Values:
    """Return z of every split of each window, by normal scores of the ranks: they need no distribution.

    `windows` is [rows, length]; z is positive if the right side is higher. Column `i` splits before index
    `SIDE_NIGHTS + i`. Equal values share the mean of their scores.
    """
    rows, length = windows.shape
    order = np.argsort(windows, axis=1, kind="stable")
    scored = np.empty_like(windows)
    scored[np.arange(rows)[:, None], order] = _scores(length)
    # Equal values get the mean of their scores.
    _share_ties(windows, order, scored)
    sums = np.cumsum(scored, axis=1)[:, limits.SIDE_NIGHTS - 1 : length - limits.SIDE_NIGHTS]
    return np.asarray(-sums * _scales(length))


def _share_ties(windows: Values, order: NDArray[np.intp], scored: Values) -> None:
    ordered = windows[np.arange(len(windows))[:, None], order]
    tied = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    for row in tied:
        _, where = np.unique(windows[row], return_inverse=True)
        scored[row] = (np.bincount(where, weights=scored[row]) / np.bincount(where))[where]


def max_chance(z: float, length: int, rho: float = 0.0) -> float:
    """Return the two-sided chance that noise reaches `z` somewhere.

    At some split of a window of this length (Miller and Siegmund 1982). Under lag-1 autocorrelation `rho` the variance
    of a sum grows by (1 + rho) / (1 - rho).
    """
    b = abs(z) * math.sqrt((1 - rho) / (1 + rho))
    if b < 1.5:
        return 1.0
    first = limits.SIDE_NIGHTS / length
    odds = 2 * math.log((1 - first) / first)
    density = math.exp(-b * b / 2) / math.sqrt(2 * math.pi)
    return min(1.0, density * (4 / b + (b - 1 / b) * odds))
