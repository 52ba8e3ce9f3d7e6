"""Statistical tests of reruns and of A/B runs.

Reruns show whether a loss is real, A/B runs whether the software causes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from plumbline.history.quantiles import normal_quantile, t_quantile
from plumbline.history.reference import HUGE, Reference

__all__ = ["BLOCK", "RerunTest", "SoftwareDifference", "block_order", "judge_reruns", "software_difference"]

Values = NDArray[np.float64]

BLOCK = 4
"""Runs of one block: A B B A, and B A A B in the next, so that a steady trend of the machine cancels."""
_ARRANGEMENTS = tuple(combinations(range(BLOCK), 2))
_LEAST_BLOCKS = 5


@dataclass(frozen=True, slots=True)
class RerunTest:
    """Result of the reruns: their mean compared with the reference."""

    holds: bool
    z: float
    limit: float
    mean: float


@dataclass(frozen=True, slots=True)
class SoftwareDifference:
    """Result of an A/B between two environments on one machine.

    The environments are tonight's and the baseline's.
    """

    size: float
    """Median of all differences between the two environments (Hodges and Lehmann): positive is worse."""
    low: float
    high: float
    p_value: float
    num_runs: int


def judge_reruns(reruns: Sequence[float], reference: Reference, alpha: float) -> RerunTest:
    """Test fresh reruns of tonight against the reference.

    The run that raised the question is excluded. The reruns share the night, so that their mean is compared with the
    spread of one night, not of many.
    """
    finite = [min(max(value, -HUGE), HUGE) for value in reruns if math.isfinite(value)]
    limit = normal_quantile(1 - alpha)
    if not finite:
        return RerunTest(holds=False, z=-math.inf, limit=limit, mean=math.nan)
    mean = math.fsum(finite) / len(finite)
    z = (mean - reference.centre) / reference.predicted()
    return RerunTest(holds=z > limit, z=z, limit=limit, mean=mean)


def block_order(block: int) -> tuple[bool, ...]:
    """Return which runs of a block use tonight's environment.

    Even blocks: A B B A; odd blocks: B A A B, where A is tonight's.
    """
    first = block % 2 == 0
    return (first, not first, not first, first)


def software_difference(tonight: Values, baseline: Values, alpha: float) -> SoftwareDifference | None:
    """Test blocks of A/B runs, [blocks, 2] per environment.

    Return `None` below five complete blocks. Exact one-sided permutation test within blocks, on ranks aligned by their
    block's mean: it assumes only that runs of one block are exchangeable if the environments are equal. The interval is
    Student's at `alpha` on both sides.
    """
    whole = np.isfinite(tonight).all(axis=1) & np.isfinite(baseline).all(axis=1)
    ours, theirs = (np.clip(runs[whole], -HUGE, HUGE) for runs in (tonight, baseline))
    if len(ours) < _LEAST_BLOCKS:
        return None
    runs = np.concatenate([ours, theirs], axis=1)
    p_value = _chance(runs - runs.mean(axis=1, keepdims=True))
    each = ours.mean(axis=1) - theirs.mean(axis=1)
    size = float(np.median((ours[:, :, None] - theirs[:, None, :]).ravel()))
    error = float(each.std(ddof=1)) / math.sqrt(len(each))
    width = t_quantile(max(alpha, 0.025), len(each) - 1) * error
    return SoftwareDifference(size, size - width, size + width, p_value, int(runs.size))


def _chance(aligned: Values) -> float:
    """Return the p-value of tonight's rank sum.

    It counts all arrangements within blocks; if there are too many, it is approximate.
    """
    _, where = np.unique(np.round(aligned.ravel(), 12), return_inverse=True)
    counts = np.bincount(where)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[where].reshape(aligned.shape)
    observed = float(ranks[:, :2].sum())
    sums = np.zeros(1)
    for row in ranks:
        choices = row[_pairs()].sum(axis=1)
        sums = (sums[:, None] + choices[None, :]).ravel()
        if len(sums) > 5_000_000:
            return _normal_chance(ranks, observed)
    return float((sums >= observed - 1e-9).mean())


def _normal_chance(ranks: Values, observed: float) -> float:
    """Return the normal approximation of the p-value, for many blocks."""
    choices = np.stack([row[_pairs()].sum(axis=1) for row in ranks])
    z = (observed - choices.mean(axis=1).sum()) / math.sqrt(max(float(choices.var(axis=1).sum()), 1e-12))
    return 0.5 * math.erfc(z / math.sqrt(2))


@lru_cache(maxsize=1)
def _pairs() -> NDArray[np.intp]:
    return np.array(_ARRANGEMENTS, dtype=np.intp)
