"""E-divisive change points (Matteson and James, 2014): where a series' distribution changes, and how surely.

The energy distance between two neighbouring segments is greatest at a change; a permutation test says whether it is
greater than chance makes it. The permutations come from a fixed seed, so that one series always gives one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Change", "changes"]

_LEAST_SEGMENT = 5
_PERMUTATIONS = 199
_LEVEL = 0.01
_MOST = 1000


@dataclass(frozen=True, slots=True)
class Change:
    """From `index` on the series is another one; before and after are its medians on both sides."""

    index: int
    before: float
    after: float
    p_value: float


def changes(values: Sequence[float], *, level: float = _LEVEL) -> tuple[Change, ...]:
    """All changes at a significance of `level`, in order. Of a long series, the last thousand values are looked at."""
    array = np.asarray(values, dtype=np.float64)
    skipped = max(len(array) - _MOST, 0)
    array = array[skipped:]
    if not np.isfinite(array).all():
        return ()
    generator = np.random.Generator(np.random.Philox(key=0))
    found: dict[int, float] = {}
    segments = [(0, len(array))]
    while segments:
        start, end = segments.pop()
        split = _split(array[start:end], level, generator)
        if split is not None:
            found[start + split[0]] = split[1]
            segments += [(start + split[0], end), (start, start + split[0])]
    edges = [0, *sorted(found), len(array)]
    return tuple(
        Change(
            index=edges[place] + skipped,
            before=float(np.median(array[edges[place - 1] : edges[place]])),
            after=float(np.median(array[edges[place] : edges[place + 1]])),
            p_value=found[edges[place]],
        )
        for place in range(1, len(edges) - 1)
    )


def _split(segment: NDArray[np.float64], level: float, generator: np.random.Generator) -> tuple[int, float] | None:
    """Where the segment changes, and the chance that it does not; `None` where it does not."""
    if len(segment) < 2 * _LEAST_SEGMENT:
        return None
    place, height = _best(segment)
    above = sum(_best(generator.permutation(segment))[1] >= height for _ in range(_PERMUTATIONS))
    p_value = (above + 1) / (_PERMUTATIONS + 1)
    return (place, p_value) if height > 0 and p_value <= level else None


def _best(segment: NDArray[np.float64]) -> tuple[int, float]:
    """The split with the greatest energy distance between both sides, scaled by their sizes."""
    count = len(segment)
    gaps = np.abs(segment[:, None] - segment[None, :])
    corner = gaps.cumsum(axis=0).cumsum(axis=1)
    sizes = np.arange(_LEAST_SEGMENT, count - _LEAST_SEGMENT + 1)
    left = corner[sizes - 1, sizes - 1]
    across = corner[sizes - 1, -1] - left
    right = corner[-1, -1] - left - 2 * across
    n, m = sizes.astype(np.float64), (count - sizes).astype(np.float64)
    energy = (n * m / (n + m)) * (2 * across / (n * m) - left / (n * (n - 1)) - right / (m * (m - 1)))
    best = int(np.argmax(energy))
    return int(sizes[best]), float(energy[best])
