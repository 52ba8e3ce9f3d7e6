"""Paired test of two environments on one machine.

A block has equally many runs of both environments, so that what the machine does slowly cancels. Three answers are
possible, and too few blocks give the third: the environment is slower, it is not slower by so much, or more blocks are
needed. A test that cannot reach its level never acquits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.statistics.distributions import t_quantile
from plumbline.judge.statistics.samples import HUGE

Values = NDArray[np.float64]

_LEAST = 2
"""Minimum number of blocks with a spread."""
_MOST = 1000
"""Maximum number of additional blocks that are computed."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Difference between two environments on one machine; positive is worse."""

    size: float
    low: float
    high: float
    """Student's interval over the blocks."""
    p_value: float
    """Exact, one-sided, if the order within each block was drawn at random."""
    num_blocks: int
    num_runs: int
    error: float
    """Standard error of the blocks' mean difference."""
    ours: Values
    theirs: Values

    def rules_out(self, loss: float, alpha: float) -> bool:
        """Return whether the exact test rules out a slowdown of `loss`."""
        return exact_chance(self.theirs + loss, self.ours) <= alpha

    def missing_blocks(self, loss: float, alpha: float, block_size: int = 4) -> int:
        """Return how many more blocks are needed to confirm or exclude `loss`."""
        resolving = math.ceil(min(self.num_blocks * (4 * self.error / max(loss, 1e-12)) ** 2, _MOST))
        return max(least_blocks(alpha, block_size) - self.num_blocks, resolving - self.num_blocks, 1)


def least_blocks(alpha: float, block_size: int = 4) -> int:
    """Return the fewest blocks with a smallest possible p-value below the level."""
    return math.ceil(math.log(1 / alpha) / math.log(len(_halves(block_size))) - 1e-9)


def paired_test(ours: Values, theirs: Values, alpha: float) -> PairedTest | None:
    """Compare two environments, [blocks, runs] each; `None` below two complete blocks.

    The exact permutation test ranks the runs, aligned by their block's mean. It assumes nothing but the random order:
    trends of the machine, tails and skew leave its level as it is. The interval is Student's, at `alpha` on both sides;
    the size is the median of all differences within blocks (Hodges and Lehmann).
    """
    whole = np.isfinite(ours).all(axis=1) & np.isfinite(theirs).all(axis=1)
    ours, theirs = (np.clip(runs[whole], -HUGE, HUGE) for runs in (ours, theirs))
    if len(ours) < _LEAST:
        return None
    differences = ours.mean(axis=1) - theirs.mean(axis=1)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(len(differences))
    width = t_quantile(alpha, len(differences) - 1) * error
    size = float(np.median((ours[:, :, None] - theirs[:, None, :]).ravel()))
    num_runs = 2 * int(ours.size)
    return PairedTest(
        size, mean - width, mean + width, exact_chance(ours, theirs), len(ours), num_runs, error, ours, theirs
    )


def exact_chance(ours: Values, theirs: Values) -> float:
    """Return the exact p-value of our rank sum, over permutations within blocks."""
    runs = np.concatenate([ours, theirs], axis=1)
    aligned = runs - runs.mean(axis=1, keepdims=True)
    _, where, counts = np.unique(np.round(aligned.ravel(), 12), return_inverse=True, return_counts=True)
    # Twice the mean rank of equal values: an integer.
    ranks = (2 * np.cumsum(counts) - counts + 1)[where].reshape(aligned.shape)
    halves = _halves(aligned.shape[1])
    observed = int(ranks[:, : aligned.shape[1] // 2].sum())
    chances = np.ones(1)
    for row in ranks:
        sums = row[halves].sum(axis=1)
        longer = np.zeros(len(chances) + int(sums.max()))
        for value in sums.tolist():
            longer[value : value + len(chances)] += chances / len(halves)
        chances = longer
    return min(float(chances[observed:].sum()), 1.0)


@lru_cache(maxsize=4)
def _halves(block_size: int) -> NDArray[np.intp]:
    return np.array(list(combinations(range(block_size), block_size // 2)), dtype=np.intp)
