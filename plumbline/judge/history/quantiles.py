"""Quantiles of the normal and Student's t distribution, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

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
    """Return the chance that Student's t exceeds `value`: the integral of its density, over the arc tangent."""
    start = math.atan(value / math.sqrt(freedom))
    half = (math.pi / 2 - start) / 2
    total = float(_WEIGHTS @ np.cos(start + half * (1 + _NODES)) ** (freedom - 1))
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(max(scale * half * total, 0.0), 1.0)
