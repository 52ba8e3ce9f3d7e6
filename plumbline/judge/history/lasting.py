"""Test what the newest nights show by themselves: whether a loss lasts, and whether they rule it out.

No experiment is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.quantiles import t_quantile
from plumbline.judge.history.reference import Reference
from plumbline.schema import limits

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lasting:
    """Newest nights' median against the reference, and its significance."""

    holds: bool
    size: float
    z: float
    limit: float
    num_nights: int


def lasting_loss(
    here: Values,
    reference: Reference,
    alpha: float,
    *,
    ranked: bool = True,
    lengths: Sequence[int],
    rank_alpha: float | None = None,
) -> Lasting:
    """Test whether the newest nights are worse than the reference.

    `here` are the nights of one level, of which the first are the reference. Two tests must agree at `alpha`: the
    median's z, which counts the autocorrelation but assumes the spread, and the exact rank sum, which is
    distribution-free but assumes exchangeable nights. `ranked=False` skips the second, for a reference without its
    nights. Of `lengths`, the numbers of newest nights, the first counts that can reach the level.
    """
    rank_alpha = rank_alpha or alpha
    fits = [num for num in lengths if not ranked or math.comb(reference.count + num, num) * rank_alpha >= 1]
    length = fits[0] if fits else 0
    if not length or len(here) < length + (reference.count if ranked else 0):
        return Lasting(False, math.nan, -math.inf, math.inf, length or lengths[0])
    newest = here[-length:]
    size = _median(newest) - reference.centre
    width = limits.WINSOR * reference.spread
    mean = float(np.clip(newest - reference.centre, -width, max(width, size)).mean())
    # Add one standard error: an underestimated autocorrelation would cause false alarms. The anchor's loss is also
    # bounded by its size.
    error = 1 / math.sqrt(reference.count) if ranked else 0.0
    careful = replace(reference, rho=min(reference.rho + error, limits.HIGHEST_RHO))
    independent = length * (1 - careful.rho) / (1 + careful.rho)
    z = mean / careful.predicted(max(independent, 0.5))
    limit = t_quantile(alpha, round(reference.freedom))
    holds = z > limit
    if holds and ranked:
        before = here[: reference.count]
        above = float((newest[:, None] > before[None, :]).sum() + 0.5 * (newest[:, None] == before[None, :]).sum())
        holds = rank_sum_chance(int(above), length, reference.count) <= rank_alpha
    return Lasting(holds, size, z, limit, length)


def longest_shown(here: Values, reference: Reference, alpha: float, *, lengths: Sequence[int]) -> Lasting:
    """Test each number of newest nights that can reach the level, at its share; return the longest that shows a loss.

    If none shows the loss, it is the shortest one.
    """
    able = [num for num in lengths if math.comb(reference.count + num, num) * alpha >= 1] or [lengths[-1]]
    tested = [num for num in able if reference.count + num <= len(here)] or able[:1]
    share = alpha / len(tested)
    tests = [
        lasting_loss(here, reference.pooled(here[-num:]), share, lengths=(num,), rank_alpha=alpha) for num in tested
    ]
    return next((test for test in reversed(tests) if test.holds), tests[0])


def least_shown(reference: Reference, alpha: float, *, lengths: Sequence[int]) -> float:
    """Return the smallest loss that the longest of these numbers of nights shows with a power of 97.5%.

    It is infinite if so few nights of the reference cannot reach the level.
    """
    num, share = lengths[-1], alpha / len(lengths)
    if math.comb(reference.count + num, num) * alpha < 1:
        return math.inf
    rho = min(reference.rho + 1 / math.sqrt(reference.count), limits.HIGHEST_RHO)
    independent = max(num * (1 - rho) / (1 + rho), 0.5)
    careful = replace(reference, rho=rho, later=num)
    return (t_quantile(share, round(careful.freedom)) + 2) * careful.predicted(independent)


def _median(values: Values) -> float:
    ordered, half = np.sort(values), len(values) // 2
    return float(ordered[half]) if len(values) % 2 else float(ordered[half - 1] + ordered[half]) / 2


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


def is_ruled_out(size: float, fresh: Values, reference: Reference) -> bool:
    """Return whether the newest nights rule out half of a loss.

    Half, because chance enlarges a loss that is noticed. `fresh` are the nights after the question. A loss that the
    reference's few nights cannot resolve counts as the smallest one that they can. A night counts no better than
    `WINSOR`, so that no single one decides.
    """
    if not len(fresh):
        return False
    pooled = reference.pooled(fresh)
    least = max(size / 2, pooled.resolvable(limits.RULED_OUT))
    off = np.maximum(fresh - reference.centre, -limits.WINSOR * pooled.spread)
    share = (1 - reference.rho) / (1 + reference.rho)
    return any(
        pooled.rules_out(
            reference.centre + float(newest.mean()), least, limits.RULED_OUT, max(len(newest) * share, 1.0)
        )
        for newest in (off[-num:] for num in (limits.LEAST_NIGHTS, limits.OWN_NIGHTS))
    )


def overdue_loss(here: Values, num_fresh: int, reference: Reference, alpha: float) -> Lasting:
    """Test whether the nights after the question show the loss."""
    length = min(num_fresh, limits.ENOUGH_NIGHTS)
    return lasting_loss(here, reference.pooled(here[-length:]), alpha, lengths=(length,))
