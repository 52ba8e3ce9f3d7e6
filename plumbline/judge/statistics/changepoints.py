"""Change-point detection: find all level shifts in a series.

Method: seeded binary segmentation on ranks, narrowest interval first. Intervals of every scale (Kovács et al. 2023) are
scanned by `rank_scores`; of those whose largest statistic is significant the shortest gives the first change
(Baranowski et al. 2019), then all intervals that contain it are dropped. The chance counts the splits and the
intervals. An autocorrelated series is whitened first: ranks have a largest statistic, which a wider variance would put
below the limit in a short series, however large the change is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from plumbline.judge.statistics.distributions import MEDIAN_DEVIATION, max_chance, t_tail
from plumbline.judge.statistics.samples import HUGE, Values, autocorrelation_within, rank_scores, split_scores
from plumbline.schema import limits

_LONGEST = 512
"""Maximum points on each side of a change; longer windows find no more."""
_CANDIDATES = 30.0
"""Level of the search for candidates, in units of a change's level between its neighbours."""
_BESIDE = 0.1
"""Level of a further candidate between two others, in the same units."""
_FLOOR = 1e-9
"""Least SD of a series in units of its spread."""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Level shift, with the medians before and after.

    `index` is the first of the new level; `last` is that of a creep's last step.
    """

    index: int
    before: float
    after: float
    p_value: float
    shape: Literal["step", "creep"] = "step"
    last: int = 0


def changes(values: Sequence[float] | Values, *, level: float = limits.LEVEL / 2) -> tuple[ChangePoint, ...]:
    """Return a series' change points, replacing steps by better-fitting ramps.

    `level` is the family-wise error rate: half of an alarm's, because each night judges the series again. Non-finite
    values are skipped, but count in indices. A short or constant series has no changes.
    """
    every = np.asarray(values, dtype=np.float64)
    places = np.flatnonzero(np.isfinite(every))
    array = np.clip(every[places], -HUGE, HUGE)
    if len(array) < 2 * limits.SIDE_NIGHTS:
        return ()
    splits = _by_t_test(array, 0, level) if len(array) <= limits.FEW_NIGHTS else _by_ranks(array, level)
    edges = [0, *(index for index, _ in splits), len(array)]
    medians = [float(np.median(part)) for part in np.split(array, edges[1:-1])]
    found: list[ChangePoint] = []
    for _, run in groupby(range(len(splits)), key=lambda order: medians[order + 1] > medians[order]):
        group = list(run)
        first, last = edges[group[0]], edges[group[-1] + 2]
        begin = _ramp(array[first:last], [edges[order + 1] - first for order in group])
        for part in [group] if begin is not None else [[order] for order in group]:
            index = edges[part[0] + 1] if begin is None else first + begin
            found.append(
                ChangePoint(
                    int(places[index]), medians[part[0]], medians[part[-1] + 1],
                    min(splits[order][1] for order in part), "step" if begin is None else "creep",
                    int(places[edges[part[-1] + 1]]),
                )
            )  # fmt: skip
    return tuple(found)


def _ramp(values: Values, steps: list[int]) -> int | None:
    """Return where a ramp starts, if a ramp fits better (BIC)."""
    if len(steps) < 2:
        return None
    half, parts = (steps[-1] - steps[0]) / (2 * len(steps) - 2), np.split(values, steps)
    ends = [max(steps[0] - half, 0), min(steps[-1] + half, len(values) - 1)]
    ramp = np.interp(np.arange(len(values)), ends, [float(parts[0].mean()), float(parts[-1].mean())])
    of_ramp = float(((values - ramp) ** 2).sum())
    of_steps = math.fsum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    # A ramp has three parameters, a step two.
    penalty = (2 * len(steps) - 3) * math.log(len(values)) / len(values)
    return round(ends[0]) if of_ramp < of_steps * math.exp(penalty) else None


def _by_ranks(array: Values, level: float) -> list[tuple[int, float]]:
    """Segment by rank tests: first as white noise, then with autocorrelation removed.

    The autocorrelation of the whole series is of no use: every change of level raises it.
    """
    splits = _refined(array, 0.0, level)
    if not splits:
        return []
    places = [place for place, _ in splits]
    # A change of level stays at its place, smaller by the factor 1 - rho.
    noise = array - autocorrelation_within(array, places) * np.concatenate([array[:1], array[:-1]])
    return _refined(noise, _remainder(noise, places), level)


def _by_t_test(array: Values, first: int, level: float) -> list[tuple[int, float]]:
    """Split recursively at the largest significant t (Bonferroni)."""
    count = len(array)
    if count < 2 * limits.SIDE_NIGHTS or np.ptp(array) <= 0:
        return []
    place, t = _best_split(array)
    chance = min(2 * t_tail(t, count - 2) * (count - 2 * limits.SIDE_NIGHTS + 1), 1.0)
    if chance > level:
        return []
    before = _by_t_test(array[:place], first, level)
    return [*before, (first + place, chance), *_by_t_test(array[place:], first + place, level)]


def _best_split(values: Values) -> tuple[int, float]:
    """Return the split with the largest two-sample t, and its t."""
    splits = np.arange(limits.SIDE_NIGHTS, len(values) - limits.SIDE_NIGHTS + 1)
    scores = np.abs(split_scores((values - values.min()) / np.ptp(values), splits, least=_FLOOR))
    return int(splits[scores.argmax()]), float(scores.max())


def _remainder(noise: Values, places: Sequence[int]) -> float:
    """Return the lag-1 autocorrelation left after whitening, in [0, 0.9].

    It is measured within segments. A trend or random walk is no AR(1) noise about a level: its whitened differences
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


def _narrowest(array: Values, rho: float, level: float) -> list[tuple[int, float]]:
    """Return (index, p-value) of change points, by the shortest significant intervals.

    The chance counts the disjoint intervals of a length; what overlapping ones and several lengths add is simulated.
    """
    splits: list[tuple[int, float]] = []
    longest = min(len(array), _LONGEST)
    num_scales = math.ceil(math.log2(max(longest / limits.OWN_NIGHTS, 1)))
    for size in [*(limits.OWN_NIGHTS << scale for scale in range(num_scales)), longest]:
        starts = np.unique(np.append(np.arange(0, len(array) - size + 1, max(size // 4, 1)), len(array) - size))
        z = rank_scores(np.lib.stride_tricks.sliding_window_view(array, size)[starts])
        best, heights = z.argmax(axis=1), z.max(axis=1)
        for row in np.argsort(-heights, kind="stable").tolist():
            chance = _chance(float(heights[row]), size, rho, array)
            if chance > level:
                break
            start = int(starts[row])
            if not any(start < place < start + size for place, _ in splits):
                splits.append((start + limits.SIDE_NIGHTS + int(best[row]), chance))
    return sorted(splits)


def _chance(z: float, size: int, rho: float, array: Values) -> float:
    """Return the chance that noise reaches `z` in any interval of this size."""
    return max_chance(z, size, rho) * 2 * max(len(array) / size, 1.0)


def _refined(array: Values, rho: float, level: float) -> list[tuple[int, float]]:
    """Return the significant change points, each dated precisely between its neighbours.

    A gain that is undone hides each of its changes from the intervals that hold both: less sure ones are candidates,
    of which the least sure is dropped until all are significant between their neighbours.
    """
    places = [place for place, _ in _narrowest(array, rho, min(_CANDIDATES * level, 1.0))]
    # The other change of a short level shows beside the first one alone.
    parts = itertools.pairwise([0, *places, len(array)]) if places else ()
    others = [_between(array, first, (first + last) // 2, last, rho) for first, last in parts]
    places = sorted({*places, *(place for place, chance in others if chance <= _BESIDE * level)})
    while places:
        edges = [0, *places, len(array)]
        dated = [_between(array, *near, rho) for near in zip(edges, places, edges[2:], strict=False)]
        gaps = np.diff([0, *(place for place, _ in dated), len(array)])
        # Of two that come to one date the less sure is none.
        chances = [
            1.0 + chance if min(gaps[order], gaps[order + 1]) < limits.SIDE_NIGHTS else chance
            for order, (_, chance) in enumerate(dated)
        ]
        chances = _jointly(array, edges, chances)
        if max(chances) <= level:
            return dated
        places.pop(chances.index(max(chances)))
    return []


def _jointly(array: Values, edges: list[int], chances: list[float]) -> list[float]:
    """Return the chances of changes, of which two that undo each other are judged together (Fisher)."""
    medians = [float(np.median(array[first:last])) for first, last in itertools.pairwise(edges)]
    ups = [after > before for before, after in itertools.pairwise(medians)]
    found = list(chances)
    for order, (left, right) in enumerate(itertools.pairwise(chances)):
        if ups[order] != ups[order + 1] and max(left, right) <= 1.0:
            product = left * right
            both = product * (1 - math.log(max(product, 1e-300)))
            found[order], found[order + 1] = min(found[order], both), min(found[order + 1], both)
    return found


def _between(array: Values, before: int, place: int, after: int, rho: float) -> tuple[int, float]:
    """Return the likeliest change near a place and between two others, and its p-value."""
    start = max(before, place - _LONGEST)
    window = array[start : min(after, place + _LONGEST)]
    if len(window) < 2 * limits.SIDE_NIGHTS + 1:
        return place, 1.0
    z = rank_scores(window[None])[0]
    place = start + _dated(window, limits.SIDE_NIGHTS + int(z.argmax()))
    return place, _chance(float(z.max()), len(window), rho, array)


def _dated(window: Values, place: int) -> int:
    """Return the least-squares split of a window.

    Values are winsorised about the medians of both sides of `place`. Ranks say that a window changes, but not how much
    lies between its values: they date a large step too roughly.
    """
    before, after = float(np.median(window[:place])), float(np.median(window[place:]))
    deviations = np.abs(window - np.where(np.arange(len(window)) < place, before, after))
    width = limits.WINSOR * MEDIAN_DEVIATION * float(np.median(deviations))
    clipped = np.clip(window, min(before, after) - width, max(before, after) + width)
    return _best_split(clipped)[0] if np.ptp(clipped) > 0 else place
