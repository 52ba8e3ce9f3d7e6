"""Search for all changes of level in a long series.

Method: seeded binary segmentation on ranks, narrowest interval first. Intervals of every scale (Kovács, Li, Bühlmann
and Munk 2023) are scanned by `rank_scan`; of those whose largest statistic is significant the shortest gives the first
change (Baranowski, Chen and Fryzlewicz 2019), then all intervals that contain this change are dropped. The chance
counts the splits and the intervals. An autocorrelated series is whitened first: ranks have a largest statistic, which a
wider variance would put below the limit in a short series, however large the change is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.quantiles import MEDIAN_DEVIATION, max_chance, rank_scan, t_tail
from plumbline.judge.history.reference import HUGE
from plumbline.schema import limits

Values = NDArray[np.float64]

_DECAY = math.sqrt(2)
_LONGEST = 512
"""Maximum points on each side of a change; longer windows find no more."""
_FLOOR = 1e-18
"""Least variance of a series in units of its squared spread."""
_WINSOR = limits.WINSOR * MEDIAN_DEVIATION
"""Maximum weight of a value in a sum, in median deviations."""
_PASSES = 4
"""Maximum estimates of the autocorrelation; the second is nearly always the last."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Change of level, with the medians of both sides.

    `index` is the first of the new level.
    """

    index: int
    before: float
    after: float
    p_value: float

    @property
    def size(self) -> float:
        """Return the relative change of the level.

        It is 0 if the level before is 0.
        """
        return self.after / self.before - 1 if self.before else 0.0


def changes(values: Sequence[float] | Values, *, level: float = limits.LEVEL / 2) -> tuple[ChangePoint, ...]:
    """Return the changes of level of a series, in order.

    `level` is the family-wise error rate: half of an alarm's, because each night judges the series again. Non-
    finite values are skipped, but count in indices. A short or constant series has no changes.
    """
    every = np.asarray(values, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(every))
    array = np.clip(every[places], -HUGE, HUGE)
    if len(array) < 2 * limits.SIDE_NIGHTS:
        return ()
    splits = _by_t_test(array, 0, level) if len(array) <= limits.FEW_NIGHTS else _by_ranks(array, level)
    edges = [0, *(index for index, _ in splits), len(array)]
    return tuple(
        ChangePoint(
            int(places[index]),
            float(np.median(array[edges[order] : index])),
            float(np.median(array[index : edges[order + 2]])),
            p_value,
        )
        for order, (index, p_value) in enumerate(splits)
    )


def _by_ranks(array: Values, level: float) -> list[tuple[int, float]]:
    """Segment by ranks, and whiten autocorrelated noise until both agree.

    The first segmentation assumes white noise; the next ones whiten by the autocorrelation within the segments. The
    autocorrelation of the whole series is of no use: every change of level raises it.
    """
    splits = _segmented(array, 0.0, level)
    for _ in range(_PASSES):
        places = [place for place, _ in splits]
        if not places:
            break
        noise = _whitened(array, autocorrelation_within(array, places))
        splits = _segmented(noise, _remainder(noise, places), level)
        if [place for place, _ in splits] == places:
            break
    return splits


def _segmented(noise: Values, rho: float, level: float) -> list[tuple[int, float]]:
    return _refined(noise, _narrowest(list(_candidates(noise, rho, level))), rho, level)


def _whitened(array: Values, rho: float) -> Values:
    """Return x(t) - rho x(t-1).

    A change of level stays at its place, smaller by the factor 1 - rho.
    """
    return np.asarray(array - rho * np.concatenate([array[:1], array[:-1]]))


def _by_t_test(array: Values, first: int, level: float) -> list[tuple[int, float]]:
    """Split recursively at the largest significant t (Bonferroni)."""
    count, spread = len(array), float(np.ptp(array))
    if count < 2 * limits.SIDE_NIGHTS or spread <= 0:
        return []
    # In units of the spread, so that no square is below or above what a float holds.
    array, best, place = (array - array.min()) / spread, 0.0, 0
    for index in range(limits.SIDE_NIGHTS, count - limits.SIDE_NIGHTS + 1):
        left, right = array[:index], array[index:]
        pooled = float(((left - left.mean()) ** 2).sum() + ((right - right.mean()) ** 2).sum()) / (count - 2)
        t = abs(float(right.mean() - left.mean())) / math.sqrt(max(pooled, _FLOOR) * (1 / index + 1 / (count - index)))
        best, place = max((best, place), (t, index))
    chance = min(2 * t_tail(best, count - 2) * (count - 2 * limits.SIDE_NIGHTS + 1), 1.0)
    if chance > level:
        return []
    before = _by_t_test(array[:place], first, level)
    return [*before, (first + place, chance), *_by_t_test(array[place:], first + place, level)]


def autocorrelation_within(values: Values, places: Sequence[int]) -> float:
    """Return the lag-1 autocorrelation within segments, in [0, 0.9].

    The segments begin at `places`; values are winsorised. Means and places that fit the noise take (1 + 3 rho) / n, and
    (3.3 + 4.5 rho) / n for each place, which are added.
    """
    count, number = len(values), len(places)
    residuals = np.concatenate([part - np.median(part) for part in np.split(values, places)])
    width = _WINSOR * float(np.median(np.abs(residuals)))
    clipped = np.clip(residuals, -width, width)
    parts = [part - part.mean() for part in np.split(clipped, places)]
    square = math.fsum(float(part @ part) for part in parts)
    free = count - 3 - 4.5 * number
    if square <= 0 or free <= 0:
        return 0.0 if square <= 0 else limits.HIGHEST_RHO
    sample = math.fsum(float(part[1:] @ part[:-1]) for part in parts) / square
    return min(max((sample * count + 1 + 3.3 * number) / free, 0.0), limits.HIGHEST_RHO)


def _remainder(noise: Values, places: Sequence[int]) -> float:
    """Return the lag-1 autocorrelation left after whitening, in [0, 0.9].

    It is that within the segments. A trend or a walk is no AR(1) noise about a level: its whitened differences still
    grow with their distance, as E|x(t) - x(t-2)|² / E|x(t) - x(t-1)|² = 1 + rho. Winsorised means; less than 2.5 /
    sqrt(n) is chance.
    """
    starts = np.array(places, dtype=np.intp)
    first = np.delete(np.abs(noise[1:] - noise[:-1]), starts - 1)
    second = np.delete(np.abs(noise[2:] - noise[:-2]), np.union1d(starts - 1, starts - 2))
    width = 4 * float(np.median(second))
    if width <= 0:
        return 0.0
    ratio = float((np.minimum(second, width) ** 2).mean() / max((np.minimum(first, width) ** 2).mean(), 1e-300))
    return min(ratio - 1, limits.HIGHEST_RHO) if ratio - 1 > 2.5 / math.sqrt(len(noise)) else 0.0


def _intervals(length: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield (length, starts) of the seeded intervals, shortest first."""
    sizes = sorted({min(int(limits.OWN_NIGHTS * _DECAY**scale), length, _LONGEST) for scale in range(40)})
    for size in sizes:
        if size < length:
            step = max(size // 4, 1)
            starts = np.unique(np.append(np.arange(0, length - size + 1, step), length - size))
        else:
            starts = np.zeros(1, dtype=np.intp)
        yield size, starts.astype(np.intp)


def _candidates(array: Values, rho: float, level: float) -> Iterator[tuple[int, int, int, float, float]]:
    """Yield (start, end, place, chance, |z|) of each significant interval."""
    scales = list(_intervals(len(array)))
    windows = np.lib.stride_tricks.sliding_window_view
    for size, starts in scales:
        z = np.abs(rank_scan(windows(array, size)[starts]))
        best = z.argmax(axis=1)
        heights = z[np.arange(len(starts)), best]
        # Disjoint intervals of this length; what overlapping ones and several scales add is simulated (docs/MATH.md).
        times = _times(array, size)
        for row in np.flatnonzero(heights > 2.5):
            chance = min(max_chance(float(heights[row]), size, rho) * times, 1.0)
            if chance <= level:
                start = int(starts[row])
                yield start, start + size, start + limits.SIDE_NIGHTS + int(best[row]), chance, float(heights[row])


def _times(array: Values, size: int) -> float:
    """Return by how much the chance of one interval is multiplied for all of its length."""
    return 2 * max(len(array) / size, 1.0)


def _narrowest(candidates: list[tuple[int, int, int, float, float]]) -> list[tuple[int, float]]:
    """Select the shortest significant intervals.

    Other intervals that contain the same change are dropped.
    """
    splits: list[tuple[int, float]] = []
    left = sorted(candidates, key=lambda candidate: (candidate[1] - candidate[0], candidate[3], -candidate[4]))
    while left:
        _, _, place, chance, _ = left[0]
        splits.append((place, chance))
        left = [interval for interval in left if not interval[0] < place < interval[1]]
    return sorted(splits)


def _refined(array: Values, splits: list[tuple[int, float]], rho: float, level: float) -> list[tuple[int, float]]:
    """Relocate each change between its neighbours; drop insignificant ones."""
    for _ in range(2):
        edges = [0, *(place for place, _ in splits), len(array)]
        moved: list[tuple[int, float]] = []
        for order, (place, chance) in enumerate(splits):
            start, end = max(edges[order], place - _LONGEST), min(edges[order + 2], place + _LONGEST)
            if moved:
                start = max(start, moved[-1][0])
            if end - start < 2 * limits.SIDE_NIGHTS + 1:
                continue
            z = np.abs(rank_scan(array[None, start:end])[0])
            best = int(z.argmax())
            # The shortest interval is barely significant, however large the change: its neighbours say how sure it is.
            own = max_chance(float(z[best]), end - start, rho)
            if own <= level:
                date = start + _dated(array[start:end], limits.SIDE_NIGHTS + best)
                moved.append((date, min(chance, own * _times(array, end - start))))
        splits = moved
    return splits


def _dated(window: Values, place: int) -> int:
    """Return the least-squares split of a window.

    Values are winsorised about the medians of both sides of `place`. Ranks say that a window changes, but not how much
    lies between its values: they date a large step too roughly.
    """
    before, after = float(np.median(window[:place])), float(np.median(window[place:]))
    deviations = np.abs(window - np.where(np.arange(len(window)) < place, before, after))
    width = _WINSOR * float(np.median(deviations))
    clipped = np.clip(window, min(before, after) - width, max(before, after) + width)
    left = np.arange(limits.SIDE_NIGHTS, len(window) - limits.SIDE_NIGHTS + 1)
    sums = np.cumsum(clipped - clipped.mean())[left - 1]
    gains = sums**2 / (left * (len(window) - left))
    return int(left[gains.argmax()]) if gains.max() > 0 else place
