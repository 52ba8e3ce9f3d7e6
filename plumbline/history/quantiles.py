"""Quantiles of the normal and Student's t distribution, without SciPy."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

QUARTILES = 1.349
"""Distance of the quartiles of normal values in SD."""
MEDIAN_DEVIATION = 1.4826
"""SD of normal values in units of their median deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of a median in units of SD / sqrt(n), for normal values."""
_NORMAL = NormalDist()


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
