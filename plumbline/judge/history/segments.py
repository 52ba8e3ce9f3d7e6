"""Segments of a series, in which nights are comparable.

Each boundary has its reason.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.decision import Decision, Onset, Past, Question, Reason
from plumbline.judge.history.metrics import Metric
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.judge.history.series import CallEntry, SeriesFile
from plumbline.judge.history.state import advance, moved
from plumbline.schema import limits

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Boundary:
    """Start of a segment: its index, and the change there."""

    index: int
    what: str
    """`spec`, `hardware`, `lock` or `baseline`."""
    before: str
    after: str

    @property
    def ends_comparison(self) -> bool:
        """Return whether nights before and after are not comparable.

        A new lock does not end the comparison: it is what the nights judge.
        """
        return self.what in ("spec", "hardware", "baseline")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """Decision of an earlier night, with the night's index."""

    place: int
    entry: CallEntry


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
    calls: tuple[PlacedCall, ...] = ()
    accepted: tuple[float, ...] = ()
    """Times of the accepted records, the anchor's first."""
    upgrades: tuple[int, ...] = ()
    """Indexes of the nights whose software differs from the night before."""

    def day(self, index: int) -> str:
        """Return the date of a night, as text."""
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
        times = _taken(series.time, places)
        rounds, records = _taken(series.round, places), _taken(series.record, places)
        stamps = tuple(sorted(time.timestamp() for time in (accepted or {}).get(workload, ())))
        calls = _placed(series.calls, records)
        boundaries = tuple(_boundaries(series, places, times, stamps))
        upgrades = _upgrades(series, places)
        for metric in metrics:
            column = series.metrics.get(metric.name)
            if column is None:
                continue
            values = _taken(column, places)
            if any(value is not None for value in values):
                own_calls = tuple(call for call in calls if call.entry.metric == metric.name)
                whole = times, rounds, records, values, boundaries, own_calls, stamps, upgrades
                histories.append(MetricHistory(series.platform, workload, metric, *whole))
    return tuple(histories)


def _taken(column: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
    """Return a column's values in these rows.

    `places` ascend.
    """
    return column if len(places) == len(column) else tuple(map(column.__getitem__, places))


def _placed(calls: Sequence[CallEntry], records: Sequence[str]) -> tuple[PlacedCall, ...]:
    """Return the calls on these records, with their nights."""
    place_of = {record: place for place, record in enumerate(records)} if calls else {}
    return tuple(PlacedCall(place_of[call.record], call) for call in calls if call.record in place_of)


def _of_tonights_class(series: SeriesFile, places: list[int]) -> list[int]:
    """Select the nights of tonight's machine class in mixed pools.

    They are left out only where a pool alternates between classes. A class that is gone for good stays: its last night
    is a boundary.
    """
    classes = [series.hardware[place] for place in places]
    changes = sum(before != after for before, after in pairwise(classes))
    if changes <= len(set(classes)) - 1:
        return places
    return [place for place, own_class in zip(places, classes, strict=True) if own_class == classes[-1]]


def _boundaries(
    series: SeriesFile, places: Sequence[int], times: Sequence[float], accepted: Sequence[float]
) -> list[Boundary]:
    boundaries = []
    for what in ("spec", "hardware", "lock"):
        keys = _taken(getattr(series, what), places)
        boundaries += [
            Boundary(index, what, series.words[keys[index - 1]], series.words[keys[index]])
            for index in (np.flatnonzero(np.diff(np.array(keys, dtype=np.intp))) + 1).tolist()
        ]
    # The first acceptance is the anchor, not a change of level.
    for stamp in accepted[1:]:
        index = bisect_left(times, stamp)
        if 0 < index < len(times):
            boundaries.append(
                Boundary(index, "baseline", "", f"{datetime.fromtimestamp(stamp, timezone.utc):%Y-%m-%d}")
            )
    return sorted(boundaries, key=lambda boundary: (boundary.index, boundary.what))


def _upgrades(series: SeriesFile, places: Sequence[int]) -> tuple[int, ...]:
    """Return the nights with a new lock, package, driver, image or setting."""
    keys = list(zip(_taken(series.lock, places), _taken(series.software, places), strict=True))
    return tuple(index for index, (before, after) in enumerate(pairwise(keys), start=1) if before != after)


def past_of(history: MetricHistory, *, until: int | None = None) -> Past:
    """Return the engine's state before the night at `until` (default: all nights), by the events that rounds kept."""
    end = len(history.values) if until is None else until
    scores = history.metric.scores(history.values[:end])
    past, machine = Past(scores[:0], floor=history.metric.floor), 0
    ends = [boundary for boundary in history.boundaries if boundary.ends_comparison and boundary.index <= end]
    events: list[tuple[int, Boundary | CallEntry]] = [
        *((placed.place, placed.entry) for placed in history.calls if placed.place < end),
        *((boundary.index, boundary) for boundary in ends),
    ]
    # The acceptance of a night answers what was asked about it.
    for place, event in sorted(events, key=lambda pair: (pair[0], isinstance(pair[1], Boundary))):
        past = replace(past, values=np.append(past.values[:place], scores[len(past.values) : place]))
        if isinstance(event, CallEntry):
            past = advance(past, float(scores[place]), _decision(past, event, history))
        elif event.what == "baseline":
            past = moved(past, place, lead=0.0, call=None)
        else:
            past, machine = Past(past.values, place, place, history.metric.floor), place
    past = replace(past, values=np.append(past.values, scores[len(past.values) :]))
    return replace(past, anchor=_anchor(history, scores, machine) if past.level > machine else None)


def _decision(past: Past, entry: CallEntry, history: MetricHistory) -> Decision:
    """Return the decision of an entry of the series file, as far as the state after it needs it."""
    place, question, since = len(past.values), past.question, len(past.values)
    if entry.since is not None:
        since = max(bisect_left(history.times, entry.since, 0, place + 1), past.level)
    if (entry.verdict == "inconclusive" or entry.reason == "machine") and entry.size is not None:
        if question is None or (question.since, question.size) != (since, entry.size):
            question = Question(since, place, entry.size)
        question = replace(question, is_cleared=entry.answered)
    elif entry.verdict == "pass" and (entry.reason != "went-away" or entry.answered):
        question = None
    # A shift of cost ends no call.
    known: dict[str, Reason] = {"improved": "improved", "machine": "machine", "shift": "open-call"}
    return Decision(
        entry.verdict if entry.verdict != "invalid" else "inconclusive",
        known.get(entry.reason, "quiet"),
        reference=None if entry.centre is None else Reference(entry.centre, past.floor, 1, 0.0),
        onset=Onset(since, "creep" if entry.shape == "creep" else "step", entry.size or 0.0),
        new=entry.new and entry.size is not None,
        question=question,
        is_cleared=entry.answered,
        lead=math.nan if entry.lead is None else entry.lead,
    )


def _anchor(history: MetricHistory, scores: NDArray[np.float64], machine: int) -> Reference | None:
    """Return the reference of the first acceptance.

    `None` if the machine or the spec has changed since.
    """
    first = bisect_left(history.times, history.accepted[0]) if history.accepted else len(scores)
    if not machine <= first < len(scores):
        return None
    later = [
        boundary.index for boundary in history.boundaries if boundary.what == "baseline" and boundary.index > first
    ]
    end = min([*later, first + limits.ENOUGH_NIGHTS, len(scores)])
    return reference_of(scores[first:end], floor=history.metric.floor, is_whole=True)
