"""Segments of comparable nights, and the state after past decisions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise

import numpy as np

from plumbline.judge.history.decision import Decision, Onset, Past, Question, Reason, advance, moved
from plumbline.judge.history.metrics import Metric
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.statistics.samples import Values
from plumbline.schema import limits
from plumbline.schema.series import WORD_COLUMNS, CallEntry, SeriesFile


@dataclass(frozen=True, slots=True)
class Boundary:
    """Start of a segment: its index, and what changed there."""

    index: int
    what: str
    """`spec`, `hardware`, `lock` or `baseline`."""
    before: str
    after: str

    @property
    def ends_comparison(self) -> bool:
        """Return whether nights before and after this change are incomparable."""
        return self.what in ("spec", "hardware", "baseline")


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """All nights of one metric, workload and platform."""

    platform: str
    workload: str
    metric: Metric
    times: tuple[float, ...]
    rounds: tuple[str, ...]
    records: tuple[str, ...]
    values: tuple[float | None, ...]
    boundaries: tuple[Boundary, ...]
    calls: tuple[tuple[int, CallEntry], ...] = ()
    """Decisions of earlier nights, with the index of each."""
    accepted: tuple[float, ...] = ()
    """Times of the accepted records, the anchor's first."""
    upgrades: tuple[int, ...] = ()
    """Indexes of the nights whose software differs from the night before."""

    def day(self, index: int) -> str:
        """Return the date of a night as text."""
        return f"{datetime.fromtimestamp(self.times[index], timezone.utc):%Y-%m-%d}"


def lines_of(
    series: SeriesFile, metrics: Sequence[Metric], accepted: Mapping[str, Sequence[datetime]] | None = None
) -> tuple[MetricHistory, ...]:
    """Return the history of every metric that has a value.

    `accepted` has the acceptance times of each workload.
    """
    histories = []
    for workload in series.workloads:
        places = _of_tonights_class(series, series.places(workload))
        times = tuple(series.time[at] for at in places)
        rounds, records = (tuple(column[at] for at in places) for column in (series.round, series.record))
        stamps = sorted(time.timestamp() for time in (accepted or {}).get(workload, ()))
        index_of = {record: index for index, record in enumerate(records)}
        calls = [(index_of[call.record], call) for call in series.calls if call.record in index_of]
        keys = {name: [series.words[getattr(series, name)[at]] for at in places] for name in WORD_COLUMNS}
        software = list(zip(keys["lock"], keys["software"], strict=True))
        whole = MetricHistory(
            series.platform, workload, metrics[0], times, rounds, records, (),
            tuple(_boundaries(keys, times, stamps)), accepted=tuple(stamps),
            upgrades=tuple(index for index, (old, new) in enumerate(pairwise(software), start=1) if old != new),
        )  # fmt: skip
        for metric in metrics:
            values = tuple(column[at] for at in places) if (column := series.metrics.get(metric.name)) else ()
            if any(value is not None for value in values):
                own = tuple(call for call in calls if call[1].metric == metric.name)
                histories.append(replace(whole, metric=metric, values=values, calls=own))
    return tuple(histories)


def _of_tonights_class(series: SeriesFile, places: list[int]) -> list[int]:
    """Select nights on tonight's hardware class, if the pool alternates between classes.

    A class that is gone for good stays: its last night is a boundary.
    """
    classes = [series.hardware[place] for place in places]
    if sum(before != after for before, after in pairwise(classes)) <= len(set(classes)) - 1:
        return places
    return [place for place, own_class in zip(places, classes, strict=True) if own_class == classes[-1]]


def _boundaries(keys: Mapping[str, Sequence[str]], times: Sequence[float], accepted: Sequence[float]) -> list[Boundary]:
    boundaries = [
        Boundary(index, what, before, after)
        for what in ("spec", "hardware", "lock")
        for index, (before, after) in enumerate(pairwise(keys[what]), start=1)
        if before != after
    ]
    # The first acceptance is the anchor, not a change of level.
    for stamp in accepted[1:]:
        index = bisect_left(times, stamp)
        if 0 < index < len(times):
            day = f"{datetime.fromtimestamp(stamp, timezone.utc):%Y-%m-%d}"
            boundaries.append(Boundary(index, "baseline", "", day))
    return sorted(boundaries, key=lambda boundary: (boundary.index, boundary.what))


def past_of(history: MetricHistory, *, until: int | None = None) -> Past:
    """Rebuild the engine's state before night `until` from recorded events."""
    end = len(history.values) if until is None else until
    scores = history.metric.scores(history.values[:end])
    past, machine = Past(scores[:0], floor=history.metric.floor), 0
    ends = [boundary for boundary in history.boundaries if boundary.ends_comparison and boundary.index <= end]
    events: list[tuple[int, Boundary | CallEntry]] = [
        *((place, entry) for place, entry in history.calls if place < end),
        *((boundary.index, boundary) for boundary in ends),
    ]
    # The acceptance of a night answers what was asked about it.
    for place, event in sorted(events, key=lambda pair: (pair[0], isinstance(pair[1], Boundary))):
        past = replace(past, values=np.append(past.values[:place], scores[len(past.values) : place]))
        if isinstance(event, CallEntry):
            past = advance(past, float(scores[place]), _decision(past, event, history))
        elif event.what == "baseline":
            past = moved(past, place, lead=0.0)
        else:
            past, machine = Past(past.values, place, place, history.metric.floor), place
    past = replace(past, values=np.append(past.values, scores[len(past.values) :]))
    return replace(past, anchor=_anchor(history, scores, machine) if past.level > machine else None)


def _decision(past: Past, entry: CallEntry, history: MetricHistory) -> Decision:
    """Rebuild a decision from its series-file entry."""
    place, question, since = len(past.values), past.question, len(past.values)
    if entry.since is not None:
        since = max(bisect_left(history.times, entry.since, 0, place + 1), past.level)
    if (entry.verdict == "inconclusive" or entry.reason == "machine") and entry.size is not None:
        if question is None or (question.since, question.size) != (since, entry.size):
            question = Question(since, place, entry.size)
        question = replace(question, is_cleared=entry.answered)
    elif entry.verdict == "pass" and (entry.reason != "went-away" or entry.answered):
        question = None
    num_open = entry.open_calls
    if num_open is None and entry.verdict == "pass" and entry.reason not in ("open-call", "shift"):
        num_open = 0  # of an earlier version
    known: dict[str, Reason] = {"improved": "improved", "machine": "machine", "software": "software"}
    dated = Onset(since, "creep" if entry.shape == "creep" else "step", entry.size or 0.0)
    reference = None if entry.centre is None else Reference(entry.centre, past.floor, 1, 0.0)
    return Decision(
        entry.verdict if entry.verdict != "invalid" else "inconclusive", known.get(entry.reason, "quiet"),
        reference=reference, onset=dated, new=entry.new and entry.size is not None, question=question,
        is_cleared=entry.answered, open_calls=num_open, lead=math.nan if entry.lead is None else entry.lead,
    )  # fmt: skip


def _anchor(history: MetricHistory, scores: Values, machine: int) -> Reference | None:
    """Return the first accepted baseline's reference, unless hardware or spec changed."""
    first = bisect_left(history.times, history.accepted[0]) if history.accepted else len(scores)
    if not machine <= first < len(scores):
        return None
    later = (boundary.index for boundary in history.boundaries if boundary.what == "baseline")
    end = min([*(index for index in later if index > first), first + limits.ENOUGH_NIGHTS])
    return reference_of(scores[first:end], floor=history.metric.floor, is_whole=True)
