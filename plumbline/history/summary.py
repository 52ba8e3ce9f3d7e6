"""What is said of one line: its segments, reference, changes and tonight's decision. For the command and the report."""

from __future__ import annotations

import math

import numpy as np

from plumbline.history.episodes import Episode, episodes
from plumbline.history.limits import Allowed
from plumbline.history.night import judge_lines, sentence
from plumbline.history.reference import reference_of
from plumbline.history.segments import Line
from plumbline.schema.base import Model

__all__ = ["ChangeSummary", "LineSummary", "SegmentStart", "summarise"]

_NEAR = 2
"""Nights between a boundary and a change that count as one event."""


class SegmentStart(Model):
    """Where a segment begins, and what changed there."""

    since: str
    round: str
    what: str
    before: str = ""
    after: str = ""


class ChangeSummary(Model):
    """One lasting change of the series."""

    since: str
    round: str
    shape: str
    worse: bool
    before: float
    after: float
    change: float | None
    """Relative, or absolute where the metric is."""
    low: float | None
    high: float | None
    """95% interval of the level after."""
    p_value: float
    with_boundary: str = ""
    """What changed in the same night: `hardware`, `lock`, `spec` or `baseline`."""


class LineSummary(Model):
    """One metric of one workload on one platform."""

    platform: str
    workload: str
    metric: str
    unit: str
    nights: int
    missing: int
    reference: float | None = None
    relative_sd: float | None = None
    reference_nights: int = 0
    autocorrelation: float = 0.0
    segments: tuple[SegmentStart, ...] = ()
    changes: tuple[ChangeSummary, ...] = ()
    verdict: str
    reason: str
    sentence: str


def summarise(line: Line, allowed: Allowed, *, last: int | None = None) -> LineSummary:
    """Summarise a line; its changes are looked for in the `last` nights (default: in all)."""
    metric, end = line.metric, len(line.values)
    first = max(end - last, 0) if last else 0
    (decided,) = judge_lines([line], allowed, software={(line.workload, line.metric.name): "unavailable"})
    past = decided.past
    scores = np.append(past.values, metric.scores(line.values[-1:]))
    reference = reference_of(past.values[past.level :], floor=past.floor, prior=past.prior)
    return LineSummary(
        platform=line.platform,
        workload=line.workload,
        metric=metric.name,
        unit=metric.unit,
        nights=end,
        missing=int((~np.isfinite(scores)).sum()),
        reference=_finite(metric.value(reference.centre)) if reference else None,
        relative_sd=reference.spread if reference else None,
        reference_nights=reference.count if reference else 0,
        autocorrelation=reference.rho if reference else 0.0,
        segments=tuple(
            SegmentStart(
                since=line.day(one.index),
                round=line.rounds[one.index],
                what=one.what,
                before=one.before,
                after=one.after,
            )
            for one in line.boundaries
            if one.index >= first
        ),
        changes=tuple(_change(line, one, first) for one in episodes(scores[first:])),
        verdict=decided.verdict,
        reason=decided.reason,
        sentence=sentence(decided),
    )


def _change(line: Line, episode: Episode, first: int) -> ChangeSummary:
    metric, index = line.metric, first + episode.index
    near = [one.what for one in line.boundaries if abs(one.index - index) <= _NEAR]
    ends = sorted((metric.value(episode.low), metric.value(episode.high)))
    return ChangeSummary(
        since=line.day(index),
        round=line.rounds[index],
        shape=episode.shape,
        worse=episode.after > episode.before,
        before=metric.value(episode.before),
        after=metric.value(episode.after),
        change=_finite(metric.change(episode.after - episode.before)),
        low=_finite(ends[0]),
        high=_finite(ends[1]),
        p_value=episode.p_value,
        with_boundary=near[0] if near else "",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
