"""Summary of one metric's history, for command and report."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.detection import least_shown
from plumbline.judge.history.night import LineDecision, judge_lines, walked
from plumbline.judge.history.reference import Reference
from plumbline.judge.history.segments import MetricHistory
from plumbline.report.decisions import REASON_TEXTS, entry_sentence, sentence
from plumbline.schema.base import Model
from plumbline.schema.series import CallEntry
from plumbline.schema.verdict import Outcome

_NEAR = 2
"""Nights between a boundary and a change that count as one event."""


class SegmentStart(Model):
    """Night at which a metric's history restarts, and why."""

    since: str
    round: str
    what: str
    before: str = ""
    after: str = ""


class ChangeSummary(Model):
    """One lasting level change of a series."""

    since: str
    round: str
    shape: str
    worse: bool
    before: float
    after: float
    change: float | None
    """Relative, or absolute where the metric is."""
    with_boundary: str = ""
    """What changed in the same night: `hardware`, `lock`, `spec` or `baseline`."""


class LineSummary(Model):
    """Summary of one metric's history, by workload and platform."""

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
    autocorrelation: float = 0.0
    segments: tuple[SegmentStart, ...] = ()
    changes: tuple[ChangeSummary, ...] = ()
    verdict: Outcome
    reason: str
    sentence: str


def summarise(
    history: MetricHistory, allowed: Allowed, *, last: int | None = None, is_judged: bool = True
) -> LineSummary:
    """Summarise one metric's history.

    Its changes are the engine's events in the `last` nights (default: all): those that rounds kept, or, with
    `is_judged=False`, those that nights without experiments show.
    """
    if is_judged:
        (decided,) = judge_lines([history], allowed, software={(history.workload, history.metric.name): "unavailable"})
    else:
        decided = walked(history, allowed)
    history, metric, end = decided.line, history.metric, len(history.values)
    first = max(end - last, 0) if last else 0
    # What the round has decided by its experiments stays as it is: they are not run again.
    kept = next((entry for place, entry in history.calls if is_judged and place == end - 1), None)
    scores = metric.scores(history.values)
    reference, level = _reference(decided)
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
        level=level,
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
        changes=tuple(_changes(history, first)),
        verdict=kept.verdict if kept else decided.verdict,
        reason=kept.reason if kept else decided.reason,
        sentence=entry_sentence(history, kept) if kept else sentence(decided),
    )


def summarise_both_ways(history: MetricHistory, allowed: Allowed) -> LineSummary:
    """Summarise a history, without experiments, whose direction is assumed: a change the other way is no pass."""
    summary = summarise(history, allowed, is_judged=False)
    other = replace(history.metric, worse="higher" if history.metric.worse == "lower" else "lower")
    mirrored = replace(history, metric=other)
    if summary.verdict != "pass" or summarise(mirrored, allowed, is_judged=False).verdict == "pass":
        return summary
    text = f"{history.workload}: {history.metric.name}; {REASON_TEXTS['no-direction']}"
    return summary.model_copy(update={"verdict": "inconclusive", "reason": "no-direction", "sentence": text})


def _reference(decided: LineDecision) -> tuple[Reference | None, int]:
    """Return the reference before any reported regression, and where its nights begin."""
    past = decided.past
    return (past.calls[0].before, past.calls[0].level) if past.calls else (decided.decision.reference, past.level)


def _changes(history: MetricHistory, first: int) -> Iterator[ChangeSummary]:
    """Yield reported regressions, gains and recoveries since a night."""
    lost: CallEntry | None = None
    for place, entry in history.calls:
        centre = entry.centre or 0.0
        index = bisect_left(history.times, entry.since, 0, place + 1) if entry.since is not None else place
        before, after = centre, centre + (entry.size or 0.0)
        if entry.reason == "recovered" and lost is not None:
            before = (lost.centre or centre) + (lost.size or 0.0)
        elif not entry.new or entry.centre is None or entry.size is None:
            continue
        lost = entry if entry.verdict == "drift" else None
        if index >= first:
            yield _change(history, index, entry.shape or "step", before, after)


def _limit(history: MetricHistory, reference: Reference | None, allowed: Allowed) -> float | None:
    if reference is None or not (allowed.is_limited or allowed.margin):
        return None
    return _finite(history.metric.value(reference.centre + allowed.at(reference.centre).drop))


def _least_loss(history: MetricHistory, reference: Reference | None, allowed: Allowed) -> float | None:
    if reference is None:
        return None
    least = least_shown(reference, allowed.lasting_alpha)
    return _finite(history.metric.change(max(least, allowed.of(history.metric.name).at(reference.centre).least_change)))


def _change(history: MetricHistory, index: int, shape: str, before: float, after: float) -> ChangeSummary:
    metric = history.metric
    near = [boundary.what for boundary in history.boundaries if abs(boundary.index - index) <= _NEAR]
    return ChangeSummary(
        since=history.day(index),
        round=history.rounds[index],
        shape=shape,
        worse=after > before,
        before=metric.value(before),
        after=metric.value(after),
        change=_finite(metric.change(after - before)),
        with_boundary=near[0] if near else "",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
