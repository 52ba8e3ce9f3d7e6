"""Quantiles and tail probabilities (normal, t, rank sum, scan statistics), without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from plumbline.schema import limits

QUARTILES = 1.349
"""Distance of the quartiles of normal values in SD."""
MEDIAN_DEVIATION = 1.4826
"""SD of normal values in units of their median deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median in units of SD / sqrt(n), for normal values."""
_NORMAL = NormalDist()
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)


@lru_cache(maxsize=4096)
def normal_quantile(probability: float) -> float:
    """Return the standard normal quantile of a probability, clipped to (0, 1)."""
    return _NORMAL.inv_cdf(min(max(probability, 1e-15), 1 - 1e-15))


@lru_cache(maxsize=4096)
def t_quantile(tail: float, freedom: float) -> float:
    """Return the value that Student's t exceeds with chance `tail` (< 0.5)."""
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
    """Return the upper tail probability of Student's t, by numerical integration."""
    start = math.atan(value / math.sqrt(freedom))
    half = (math.pi / 2 - start) / 2
    total = float(_WEIGHTS @ np.cos(start + half * (1 + _NODES)) ** (freedom - 1))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(max(scale * half * total, 0.0), 1.0)


def rank_sum_chance(above: int, newer: int, older: int) -> float:
    """Return the exact tail probability of a rank sum (Mann and Whitney 1947).

    It is the chance that the newer value is higher in `above` or more of the pairs.
    """
    return _rank_sum_tails(newer, older)[min(max(above, 0), newer * older)]


@lru_cache(maxsize=256)
def _rank_sum_tails(newer: int, older: int) -> tuple[float, ...]:
    """Return exact rank-sum tail probabilities from Gaussian binomial coefficients."""
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


def max_chance(z: float, length: int, rho: float = 0.0) -> float:
    """Return the two-sided chance that noise reaches `z` at some split (Miller and Siegmund 1982).

    Under lag-1 autocorrelation `rho` the variance of a sum grows by (1 + rho) / (1 - rho).
    """
    b = abs(z) * math.sqrt((1 - rho) / (1 + rho))
    if b < 1.5:
        return 1.0
    first = limits.SIDE_NIGHTS / length
    odds = 2 * math.log((1 - first) / first)
    density = math.exp(-b * b / 2) / math.sqrt(2 * math.pi)
    return min(1.0, density * (4 / b + (b - 1 / b) * odds))
