"""Segments: comparable stretches of a series, with the reasons of their ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plumbline.history.decision import Call, Past
from plumbline.history.metrics import Metric
from plumbline.history.reference import Reference, reference_of
from plumbline.history.series import CallEntry, SeriesFile

__all__ = ["Boundary", "Line", "PlacedCall", "lines_of", "past_of"]

T = TypeVar("T")

_ANCHOR_NIGHTS = 20
"""Number of nights after the first acceptance in the anchor: later nights may already creep."""


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
        """Return whether nights before and after are not comparable; a lock is judged."""
        return self.what in ("spec", "hardware", "baseline")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """Decision of an earlier night, and the night's index."""

    place: int
    entry: CallEntry


@dataclass(frozen=True, slots=True)
class Line:
    """One metric of a workload on a platform, over all nights."""

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

    def day(self, index: int) -> str:
        """Return the night at an index, as text."""
        return f"{datetime.fromtimestamp(self.times[index], UTC):%Y-%m-%d}"


def lines_of(
    series: SeriesFile, metrics: Sequence[Metric], accepted: Mapping[str, Sequence[datetime]] | None = None
) -> tuple[Line, ...]:
    """Return every line with a value; `accepted` has acceptance times by workload."""
    found = []
    for workload in series.workloads:
        places = _of_tonights_class(series, series.places(workload))
        times = _taken(series.time, places)
        rounds, records = _taken(series.round, places), _taken(series.record, places)
        stamps = tuple(sorted(one.timestamp() for one in (accepted or {}).get(workload, ())))
        calls = _placed(series.calls, records)
        boundaries = tuple(_boundaries(series, places, times, stamps))
        for metric in metrics:
            column = series.metrics.get(metric.name)
            if column is None:
                continue
            values = _taken(column, places)
            if any(value is not None for value in values):
                mine = tuple(one for one in calls if one.entry.metric == metric.name)
                found.append(
                    Line(series.platform, workload, metric, times, rounds, records, values, boundaries, mine, stamps)
                )
    return tuple(found)


def _taken(column: tuple[T, ...], places: Sequence[int]) -> tuple[T, ...]:
    """Return a column's values in these rows, which ascend."""
    return column if len(places) == len(column) else tuple(map(column.__getitem__, places))


def _placed(calls: Sequence[CallEntry], records: Sequence[str]) -> tuple[PlacedCall, ...]:
    """Return the calls on these records, with their nights."""
    place_of = {record: place for place, record in enumerate(records)} if calls else {}
    return tuple(PlacedCall(place_of[call.record], call) for call in calls if call.record in place_of)


def _of_tonights_class(series: SeriesFile, places: list[int]) -> list[int]:
    """Leave out the nights of other machine classes, where a pool alternates between classes.

    A class that is gone for good stays: its last night is a boundary of the line.
    """
    classes = [series.hardware[place] for place in places]
    changes = sum(before != after for before, after in pairwise(classes))
    if changes <= len(set(classes)) - 1:
        return places
    return [place for place, found in zip(places, classes, strict=True) if found == classes[-1]]


def _boundaries(
    series: SeriesFile, places: Sequence[int], times: Sequence[float], accepted: Sequence[float]
) -> list[Boundary]:
    found = []
    for what in ("spec", "hardware", "lock"):
        keys = _taken(getattr(series, what), places)
        found += [
            Boundary(index, what, series.words[keys[index - 1]], series.words[keys[index]])
            for index in (np.flatnonzero(np.diff(np.array(keys, dtype=np.intp))) + 1).tolist()
        ]
    # The first acceptance is the anchor, not a change of level.
    for stamp in accepted[1:]:
        index = bisect_left(times, stamp)
        if 0 < index < len(times):
            found.append(Boundary(index, "baseline", "", f"{datetime.fromtimestamp(stamp, UTC):%Y-%m-%d}"))
    return sorted(found, key=lambda one: (one.index, one.what))


def past_of(line: Line, *, until: int | None = None) -> Past:
    """Return the engine's past before the night at `until` (default: all nights)."""
    end = len(line.values) if until is None else until
    scores = line.metric.scores(line.values[:end])
    level = max(
        (boundary.index for boundary in line.boundaries if boundary.ends_comparison and boundary.index <= end),
        default=0,
    )
    machine = max(
        (
            boundary.index
            for boundary in line.boundaries
            if boundary.what in ("spec", "hardware") and boundary.index <= end
        ),
        default=0,
    )
    call, asked = _calls(line, end, level)
    begins = call.since if call else level
    before = [
        boundary.index
        for boundary in line.boundaries
        if boundary.ends_comparison and machine <= boundary.index < begins
    ]
    prior = reference_of(scores[max([machine, *before]) : begins], floor=line.metric.floor)
    anchor = _anchor(line, scores, machine) if level > machine else None
    return Past(scores, begins, max(asked, begins), line.metric.floor, anchor, call, prior)


def _calls(line: Line, end: int, level: int) -> tuple[Call | None, int]:
    """Return the call open before night `end`, and the questions' start."""
    asked, call = level, None
    for placed in line.calls:
        place, entry = placed.place, placed.entry
        if not level <= place < end:
            continue
        if entry.new and entry.since is not None and entry.centre is not None and entry.size is not None:
            since = max(bisect_left(line.times, entry.since, 0, end), level)
            call = Call(since, entry.centre, entry.size, call.level if call else level)
        elif entry.answered:
            asked = place + 1
        elif entry.reason == "recovered":
            call, asked = None, place + 1
    return call, asked


def _anchor(line: Line, scores: NDArray[np.float64], machine: int) -> Reference | None:
    """Return the reference of the first acceptance, if machine and spec are unchanged."""
    first = bisect_left(line.times, line.accepted[0]) if line.accepted else len(scores)
    if not machine <= first < len(scores):
        return None
    later = [boundary.index for boundary in line.boundaries if boundary.what == "baseline" and boundary.index > first]
    end = min([*later, first + _ANCHOR_NIGHTS, len(scores)])
    return reference_of(scores[first:end], floor=line.metric.floor)
