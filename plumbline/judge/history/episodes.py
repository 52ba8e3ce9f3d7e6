"""Lasting changes of a whole series, as step or creep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.changepoints import ChangePoint, changes
from plumbline.judge.history.quantiles import MEDIAN_DEVIATION, MEDIAN_ERROR
from plumbline.judge.history.reference import HUGE
from plumbline.schema import limits

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Episode:
    """One lasting change: first night, levels before and after, p-value."""

    index: int
    shape: Literal["step", "creep"]
    before: float
    after: float
    low: float
    high: float
    """95% interval of the level after."""
    p_value: float | None = None


def episodes(values: Values) -> tuple[Episode, ...]:
    """Return the lasting changes of a series.

    Neighbouring changes that fit a ramp better than steps become one creep.
    """
    points = changes(values)
    groups: list[list[ChangePoint]] = []
    for point in points:
        if groups and (point.after > point.before) == (groups[-1][-1].after > groups[-1][-1].before):
            groups[-1].append(point)
        else:
            groups.append([point])
    edges = [0, *(point.index for point in points), len(values)]
    collected: list[Episode] = []
    for group in groups:
        start = edges[edges.index(group[0].index) - 1]
        end = edges[edges.index(group[-1].index) + 1]
        ramp = _ramp(values[start:end], [point.index - start for point in group])
        collected += (
            [_creep(values, group, start, ramp, end)]
            if ramp is not None
            else [_step(values, point, edges) for point in group]
        )
    return tuple(collected)


def _step(values: Values, point: ChangePoint, edges: list[int]) -> Episode:
    after = values[point.index : edges[edges.index(point.index) + 1]]
    return Episode(point.index, "step", point.before, point.after, *_interval(after), point.p_value)


def _creep(values: Values, group: list[ChangePoint], start: int, ramp: int, end: int) -> Episode:
    tail = values[max(group[-1].index, end - limits.LAG_NIGHTS) : end]
    low, high = _interval(tail)
    after = float(np.nanmedian(tail))
    return Episode(start + ramp, "creep", group[0].before, after, low, high, min(point.p_value for point in group))


def _interval(values: Values) -> tuple[float, float]:
    kept = values[np.isfinite(values)]
    spread = MEDIAN_DEVIATION * float(np.median(np.abs(kept - np.median(kept))))
    width = 1.96 * MEDIAN_ERROR * spread / np.sqrt(len(kept))
    return float(np.median(kept) - width), float(np.median(kept) + width)


def _ramp(values: Values, steps: list[int]) -> int | None:
    """Return a ramp's start if it fits better than steps.

    By BIC; otherwise `None`.
    """
    values = np.clip(values, -HUGE, HUGE)
    kept = np.isfinite(values)
    places, seen = np.flatnonzero(kept).astype(np.float64), values[kept]
    if len(steps) < 2:
        return None
    levels = zip([0, *steps], [*steps, len(values)], strict=True)
    parts = [seen[(places >= low) & (places < high)] for low, high in levels]
    of_steps = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    best, begin = np.inf, 0
    ends = sorted({*steps, len(values) - 1, *range(steps[-1], len(values), max((len(values) - steps[-1]) // 20, 1))})
    for first in range(steps[0] + 1):
        for last in ends:
            if last - first < 4:
                continue
            shape = np.clip((places - first) / (last - first), 0, 1)
            design = shape - shape.mean()
            slope = float(design @ seen) / max(float(design @ design), 1e-300)
            error = float(((seen - seen.mean() - slope * design) ** 2).sum())
            if error < best:
                best, begin = error, first
    # A ramp has three parameters, a step two: BIC penalises both.
    penalty = np.log(len(seen)) / len(seen)
    if best <= 0 or of_steps <= 0:
        return begin if best < of_steps else None
    return begin if np.log(best) + 4 * penalty < np.log(of_steps) + (2 * len(steps) + 1) * penalty else None
