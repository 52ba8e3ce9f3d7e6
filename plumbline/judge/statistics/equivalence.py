"""Tests of whether two accuracies are equal within a margin.

One test compares nights or seeds, the other one pair of models on shared rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.statistics.distributions import normal_quantile, t_quantile
from plumbline.judge.statistics.samples import HUGE
from plumbline.schema import limits

_POWER = 0.9
"""Power at which a resolvable difference, or the number of runs for it, is stated."""
_MOST_RUNS = 100_000
_TWO_SIDED = normal_quantile(1 - limits.ALPHA / 2) + normal_quantile(_POWER)
"""Normal quantiles of a two-sided test's level and power."""


@dataclass(frozen=True, slots=True)
class Equivalence:
    """Result of two one-sided equivalence tests (Schuirmann 1987).

    It includes the margin that these runs can resolve.
    """

    outcome: Literal["equivalent", "different", "unresolved"]
    difference: float
    low: float
    high: float
    """90% interval at alpha = 0.05: inside the margin means equivalent."""
    resolvable: float
    """The smallest margin that these runs could show with 90% power if nothing differed."""
    runs_needed: int
    """Runs on each side that the margin takes, at this spread and 90% power."""


def equivalence(
    reference: Sequence[float], candidate: Sequence[float], margin: float, *, alpha: float = limits.ALPHA
) -> Equivalence | None:
    """Test whether two means are equal within `margin`.

    Return `None` if the reference has fewer than two finite runs, or the candidate none. Welch's standard error; a
    single candidate has the reference's spread. `different`: the whole interval lies outside the margin.
    """
    left, right = (_finite(values) for values in (reference, candidate))
    if len(left) < 2 or not len(right):
        return None
    spreads = left.var(ddof=1), right.var(ddof=1) if len(right) > 1 else left.var(ddof=1)
    shares = spreads[0] / len(left), spreads[1] / len(right)
    error = math.sqrt(float(shares[0] + shares[1]))
    difference = float(right.mean() - left.mean())
    freedom = _welch(shares, len(left), len(right)) if len(right) > 1 else len(left) - 1.0
    width = t_quantile(alpha, freedom) * error
    low, high = difference - width, difference + width
    if -margin < low and high < margin:
        outcome: Literal["equivalent", "different", "unresolved"] = "equivalent"
    elif low > margin or high < -margin:
        outcome = "different"
    else:
        outcome = "unresolved"
    spread = math.sqrt(float(sum(spreads)) / 2)
    resolvable = (t_quantile(alpha, freedom) + t_quantile((1 - _POWER) / 2, freedom)) * error
    return Equivalence(outcome, difference, low, high, resolvable, runs_to_resolve(spread, margin, alpha=alpha))


def locks_of(values: Sequence[float], starts: Sequence[int], end: int) -> list[float]:
    """Return the mean of the nights of each dependency lock before `end`."""
    edges = [*sorted({start for start in starts if starts[0] <= start < end}), end]
    parts = [_finite(values[first:last]) for first, last in pairwise(edges)]
    return [float(part.mean()) for part in parts if len(part)]


def _finite(values: Sequence[float]) -> NDArray[np.float64]:
    kept = np.array([value for value in values if math.isfinite(value)], dtype=np.float64)
    return np.asarray(np.clip(kept, -HUGE, HUGE))


def _welch(shares: tuple[float, float], left: int, right: int) -> float:
    total = shares[0] + shares[1]
    if total <= 0:
        return float(left + right - 2)
    first = shares[0] / total
    return float(round(1 / (first**2 / (left - 1) + (1 - first) ** 2 / (right - 1))))


def runs_to_resolve(spread: float, margin: float, *, alpha: float = limits.ALPHA) -> int:
    """Return the runs per side needed to show equivalence within `margin`.

    The power is 90%, if nothing differs: n = 2 (z(1 - alpha) + z(1 - (1 - power) / 2))² SD² / margin² (Chow, Shao and
    Wang 2008).
    """
    if spread <= 0:
        return 2
    z = normal_quantile(1 - alpha) + normal_quantile(1 - (1 - _POWER) / 2)
    return int(min(max(math.ceil(2 * (z * spread / margin) ** 2), 2), _MOST_RUNS))


@dataclass(frozen=True, slots=True)
class McNemar:
    """Result of McNemar's test on two models' predictions.

    It counts the rows that only one model has right.
    """

    only_reference: int
    only_candidate: int
    num_rows: int
    p_value: float
    """Exact, two-sided: of the rows on which they disagree, a fair coin's."""

    @property
    def difference(self) -> float:
        """Return the candidate's accuracy minus the reference's."""
        return (self.only_candidate - self.only_reference) / self.num_rows if self.num_rows else 0.0

    @property
    def resolvable(self) -> float:
        """Return the smallest accuracy difference that this many rows can resolve.

        With 90% power at a two-sided level of 5%.
        """
        return (
            _TWO_SIDED * math.sqrt(self.only_reference + self.only_candidate) / self.num_rows if self.num_rows else 1.0
        )

    def rows_needed(self, margin: float) -> int:
        """Return how many rows are needed to resolve a difference of `margin`.

        It assumes that the models disagree on the same share of rows.
        """
        share = (self.only_reference + self.only_candidate) / self.num_rows if self.num_rows else 1.0
        return math.ceil((_TWO_SIDED / margin) ** 2 * share)


def mcnemar(reference_right: NDArray[np.bool_], candidate_right: NDArray[np.bool_]) -> McNemar:
    """Compare two models' predictions row by row (McNemar 1947, exact binomial).

    Both arrays hold the same rows in the same order.
    """
    only_reference = int((reference_right & ~candidate_right).sum())
    only_candidate = int((candidate_right & ~reference_right).sum())
    count = only_reference + only_candidate
    fewer = min(only_reference, only_candidate)
    logs = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(fewer + 1)]
    tail = math.fsum(math.exp(value - count * math.log(2)) for value in logs)
    return McNemar(only_reference, only_candidate, len(reference_right), min(2 * tail, 1.0) if count else 1.0)
