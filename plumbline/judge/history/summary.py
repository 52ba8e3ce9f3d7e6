"""Summary of one metric's history, for command and report."""

from __future__ import annotations

import math

import numpy as np

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.episodes import Episode, episodes
from plumbline.judge.history.lasting import least_shown
from plumbline.judge.history.night import entry_sentence, judge_lines, replayed, sentence
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.history.segments import MetricHistory
from plumbline.schema.base import Model
from plumbline.schema.verdict import Outcome

_NEAR = 2
"""Nights between a boundary and a change that count as one event."""


class SegmentStart(Model):
    """Start of a segment, and what changed there."""

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
    """Summary of one metric, workload and platform."""

    platform: str
    workload: str
    metric: str
    unit: str
    nights: int
    missing: int
    reference: float | None = None
    relative_sd: float | None = None
    reference_nights: int = 0
    limit: float | None = None
    """Value beyond which a loss counts; `None` if the metric has no limit of its own."""
    least_loss: float | None = None
    """Smallest loss, as a change of the value, that later nights show by themselves; `None`: the nights are too few."""
    level: int = 0
    """Index of the first night of the reference's level."""
    lost: float | None = None
    """Reference before an open loss, which begins at `level`."""
    autocorrelation: float = 0.0
    segments: tuple[SegmentStart, ...] = ()
    changes: tuple[ChangeSummary, ...] = ()
    verdict: Outcome
    reason: str
    sentence: str


def summarise(
    history: MetricHistory, allowed: Allowed, *, last: int | None = None, is_judged: bool = True
) -> LineSummary:
    """Summarise the history of one metric.

    Changes are searched in the `last` nights (default: all). With `is_judged=False` no round has judged the earlier
    nights, so that they are judged here, without experiments.
    """
    metric, end = history.metric, len(history.values)
    first = max(end - last, 0) if last else 0
    if is_judged:
        (decided,) = judge_lines([history], allowed, software={(history.workload, history.metric.name): "unavailable"})
    else:
        decided = replayed(history, allowed)
    # What the round has decided by its experiments stays as it is: they are not run again.
    kept = next((call.entry for call in history.calls if is_judged and call.place == end - 1), None)
    past = decided.past
    scores = np.append(past.values, metric.scores(history.values[-1:]))
    end_of_reference = past.question.since if past.question else None
    is_open = past.question is not None
    nights = past.values[past.level : end_of_reference]
    reference = reference_of(nights, floor=past.floor, prior=past.prior, is_whole=is_open)
    return LineSummary(
        platform=history.platform,
        workload=history.workload,
        metric=metric.name,
        unit=metric.unit,
        nights=end,
        missing=int((~np.isfinite(scores)).sum()),
        reference=_finite(metric.value(reference.centre)) if reference else None,
        relative_sd=reference.spread if reference else None,
        reference_nights=reference.count if reference else 0,
        limit=_limit(history, reference, allowed.of(metric.name)),
        least_loss=_least_loss(history, reference, allowed),
        level=past.level,
        lost=_finite(metric.value(past.call.centre)) if past.call else None,
        autocorrelation=reference.rho if reference else 0.0,
        segments=tuple(
            SegmentStart(
                since=history.day(boundary.index),
                round=history.rounds[boundary.index],
                what=boundary.what,
                before=boundary.before,
                after=boundary.after,
            )
            for boundary in history.boundaries
            if boundary.index >= first
        ),
        changes=tuple(_change(history, episode, first) for episode in episodes(scores[first:])),
        verdict=kept.verdict if kept else decided.verdict,
        reason=kept.reason if kept else decided.reason,
        sentence=entry_sentence(history, kept) if kept else sentence(decided),
    )


def _limit(history: MetricHistory, reference: Reference | None, allowed: Allowed) -> float | None:
    if reference is None or not (allowed.is_limited or allowed.margin):
        return None
    return _finite(history.metric.value(reference.centre + allowed.at(reference.centre).drop))


def _least_loss(history: MetricHistory, reference: Reference | None, allowed: Allowed) -> float | None:
    if reference is None:
        return None
    least = least_shown(reference, allowed.lasting_alpha, lengths=allowed.lasting_nights)
    return _finite(history.metric.change(max(least, allowed.of(history.metric.name).at(reference.centre).least_change)))


def _change(history: MetricHistory, episode: Episode, first: int) -> ChangeSummary:
    metric, index = history.metric, first + episode.index
    near = [boundary.what for boundary in history.boundaries if abs(boundary.index - index) <= _NEAR]
    ends = sorted((metric.value(episode.low), metric.value(episode.high)))
    return ChangeSummary(
        since=history.day(index),
        round=history.rounds[index],
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
