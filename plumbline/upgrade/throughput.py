"""Test whether training is slower or needs more memory, by pairs of runs. Pure.

Both runs of a pair are new processes; their order alternates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plumbline.history.paired import paired_test
from plumbline.upgrade.answer import Measure

LEAST_PAIRS = 3
MOST_PAIRS = 12
LOOKS = (LEAST_PAIRS, 4, 6, 9, MOST_PAIRS)
"""Numbers of pairs after which the interval is looked at; a quiet machine often decides after four."""
SEARCH_LOOKS = (*LOOKS, 18, 27, 40)
"""Looks of the search for a culprit: half of a known loss has to be told from none, and from the whole of it."""
_ALPHA = 0.05
"""One-sided, over all looks."""


@dataclass(frozen=True, slots=True)
class PairedDrop:
    """Share of throughput that was lost, with its interval.

    Of memory: the share of the changed environment's peak that the current one does not need.
    """

    outcome: Literal["slower", "as fast", "undecided"]
    drop: float
    low: float
    high: float
    num_pairs: int
    measure: Measure = "throughput"

    @property
    def least(self) -> float:
        """Return the least loss; of memory, the least growth."""
        return self.low if self.measure == "throughput" else growth(self.low)


def growth(share: float) -> float:
    """Return by how much more is needed where this share of it is new."""
    return share / (1 - share)


def paired_drop(
    log_ratios: Sequence[float], *, slower_above: float, fast_below: float, num_looks: int = len(LOOKS),
    measure: Measure = "throughput",
) -> PairedDrop | None:  # fmt: skip
    """Test the share of throughput that was lost.

    `None` below three finite pairs. `as fast`: the whole interval lies below `fast_below`. `slower`: otherwise, if it
    lies above `slower_above`. It is the test of a night's A/B, with blocks of two runs. Their order alternates and is
    not drawn, so that the interval decides alone.
    """
    values = [value for value in log_ratios if math.isfinite(value)]
    if len(values) < LEAST_PAIRS:
        return None
    lost = -np.array(values)[:, None]
    tested = paired_test(lost, np.zeros_like(lost), _ALPHA / num_looks)
    if tested is None:
        return None
    drop, low, high = (-math.expm1(-value) for value in (float(lost.mean()), tested.low, tested.high))
    outcome: Literal["slower", "as fast", "undecided"] = "undecided"
    if high < fast_below:
        outcome = "as fast"
    elif low > slower_above:
        outcome = "slower"
    return PairedDrop(outcome, drop, low, high, len(values), measure)
