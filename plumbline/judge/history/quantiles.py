"""Quantiles of the normal and Student's t distribution, and the largest rank statistic of a window, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from plumbline.schema import limits

QUARTILES = 1.349
"""Distance of the quartiles of normal values in SD."""
MEDIAN_DEVIATION = 1.4826
"""SD of normal values in units of their median deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median in units of SD / sqrt(n), for normal values."""
_NORMAL = NormalDist()

Values = NDArray[np.float64]


@lru_cache(maxsize=4096)
def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile.

    `probability` is clipped to the open interval (0, 1).
    """
    return _NORMAL.inv_cdf(min(max(probability, 1e-15), 1 - 1e-15))


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: float) -> float:
    """Return the upper quantile of Student's t.

    Student's t exceeds it with chance `tail` (< 0.5); `freedom` is the degrees of freedom.
    """
    if not math.isfinite(freedom):
        return normal_quantile(1 - tail)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > tail and high < 1e9:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > tail else (low, middle)
    return (low + high) / 2


def t_tail(value: float, freedom: float) -> float:
    """Return the chance that Student's t exceeds `value`."""
    half = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return half if value >= 0 else 1 - half


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta (Numerical Recipes, 6.4)."""
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    total = d
    for m in range(1, 300):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 + step * d
            c = 1 + step / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            total *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return total


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
