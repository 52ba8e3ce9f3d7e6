"""Series imported from other tools, by platform, workload and metric. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median
from typing import Literal

from plumbline.cli.exchange.directions import worse_by_name
from plumbline.cli.exchange.external_columns import TableChoice
from plumbline.cli.exchange.external_formats import ExternalRow, SeriesKey, dates_of_revisions, holds_rows, read_rows
from plumbline.cli.exchange.external_values import TIME_HINT
from plumbline.judge.history.metrics import BY_NAME, Metric, Worse
from plumbline.judge.history.segments import Boundary, MetricHistory
from plumbline.schema.base import Model
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.escape import clean
from plumbline.schema.suite_file import suggest_or_list

_DAY_SECONDS = 86400.0


class Direction(Model):
    """Direction in which a metric gets worse, and how it was determined."""

    metric: str
    worse: Worse
    source: Literal["option", "name", "tool", "assumed"]
    has_sign: bool = False
    """Whether a value is zero or negative, so that differences are shares of the typical size."""


class EndedSeries(Model):
    """Series that has no value in the file's newest night."""

    platform: str
    workload: str
    metric: str
    last: str
    missing_nights: int


class Receipt(Model):
    """Receipt of how an imported file was interpreted."""

    rows: int
    first: str
    last: str
    num_series: int
    directions: tuple[Direction, ...]
    repeated: int = 0
    """Rows that a later row of the same time and series replaces."""
    ended: tuple[EndedSeries, ...] = ()
    ignored_columns: tuple[str, ...] = ()
    ignored_files: tuple[str, ...] = ()
    """Files of a folder that hold no measurements, or are of a different kind."""


@dataclass(frozen=True, slots=True)
class ExternalSeries:
    """Series of an imported file, with the receipt."""

    histories: tuple[MetricHistory, ...]
    receipt: Receipt


def parse_external(
    text: str | Mapping[str, str], *, where: str, worse: Mapping[str, Worse] = {}, choice: TableChoice = TableChoice(),  # noqa: B008
    unread: Sequence[str] = (),
) -> ExternalSeries:  # fmt: skip
    """Return one history per platform, workload and metric, ordered by time.

    `text` is the content of one file, or of several by their names; `unread` names files of other kinds. `worse` has
    the directions of metrics that the user named. Raise `InvalidInputError` with the row and the key, and
    `ConfigurationError` for a named metric that does not exist. An empty value, `null` or `nan` is missing.
    """
    ignored: dict[str, None] = {}
    rows: list[ExternalRow] = []
    texts = {where: text} if isinstance(text, str) else text
    left_out = [place for place, content in texts.items() if len(texts) > 1 and not holds_rows(content, place, choice)]
    dates = {revision: date for place in left_out for revision, date in dates_of_revisions(texts[place]).items()}
    for place in [place for place in texts if place not in left_out]:
        own_rows, others = read_rows(texts[place], place, dates, choice)
        left_out += [] if own_rows else [place]
        ignored |= dict.fromkeys(others)
        rows += own_rows
    metrics = {row.key.metric for row in rows}
    for name in choice.metrics:
        if name not in metrics:
            hint = suggest_or_list(name, sorted({*metrics, *ignored}))
            raise ConfigurationError(f"no metric {name!r}", where=where, key="--metric", hint=hint)
    if not rows:
        raise InvalidInputError("contains no row", where=where, hint="columns: time, platform, metric, value")
    series: dict[SeriesKey, list[ExternalRow]] = {}
    for row in sorted(rows, key=lambda row: row.time):
        series.setdefault(row.key, []).append(row)
    directions = _directions(rows, worse, where)
    last = max(row.time for row in rows)
    if last < _DAY_SECONDS and not any(row.worse for row in rows):  # a graph of asv by itself counts revisions
        problem = "all rows are of the first day of 1970: these are not times since 1970"
        raise InvalidInputError(problem, where=where, key="time", hint=TIME_HINT)
    kept = {key: _last_of_each_time(series[key]) for key in sorted(series)}
    ended = {key: missing for key, own_rows in kept.items() if (missing := _missing_nights(own_rows, last))}
    receipt = Receipt(
        rows=len(rows),
        first=_day(min(row.time for row in rows)),
        last=_day(last),
        num_series=len(kept),
        directions=tuple(directions.values()),
        repeated=len(rows) - sum(map(len, kept.values())),
        ended=tuple(
            EndedSeries(**key._asdict(), last=_day(kept[key][-1].time), missing_nights=missing)
            for key, missing in ended.items()
        ),
        ignored_columns=tuple(ignored),
        ignored_files=(*left_out, *unread),
    )
    for key in ended:
        kept[key].append(replace(kept[key][-1], time=last, value=None))
    histories = [_history(key, own_rows, directions[key.metric]) for key, own_rows in kept.items()]
    return ExternalSeries(tuple(histories), receipt)


def accepted_since(
    histories: Sequence[MetricHistory], accepted: Mapping[str, float], *, where: str
) -> tuple[MetricHistory, ...]:
    """Reset each history's reference from the time that a person accepted. Series are named as printed, or by metric.

    Raise `ConfigurationError` for a name without a series, for a time after which a named series has no night, and for
    a metric of which the time closes one series and would move the reference of a different one.
    """
    named = {name: [history for history in histories if name in _names(history)] for name in accepted}
    for name, chosen in named.items():
        if not chosen:
            known = {known for history in histories for known in (history.metric.name, _name(history))}
            hint = suggest_or_list(name, sorted(known))
            raise ConfigurationError(f"no series {name!r}", where=where, key="--accept", hint=hint)
        if not any(history.times[0] < accepted[name] <= history.times[-1] for history in chosen):
            problem = f"{name!r} has no night before, or none since {_day(accepted[name])}"
            raise ConfigurationError(problem, where=where, key="--accept")
        ended = [history for history in chosen if _is_closed(_with_level(history, [accepted[name]]))]
        if ended and len(ended) < len(chosen):
            problem = f"{name!r} has several series, and this date closes one of them"
            raise ConfigurationError(problem, where=where, key="--accept", hint=f"name it: {_name(ended[0])!r}")
    levels = [
        _with_level(history, [accepted[name] for name, chosen in named.items() if history in chosen])
        for history in histories
    ]
    return tuple(history for history in levels if not _is_closed(history))


def _is_closed(history: MetricHistory) -> bool:
    """Return whether a series has no value after its accepted date."""
    return any(all(value is None for value in history.values[boundary.index :]) for boundary in history.boundaries)


def _name(history: MetricHistory) -> str:
    return clean(" ".join(part for part in (history.platform, history.workload, history.metric.name) if part))


def _names(history: MetricHistory) -> set[str]:
    """Return the names by which a series is printed, in its line and in its finding."""
    metric = history.metric.name
    return {metric, clean(metric, 80), _name(history), clean(f"{history.workload}: {metric}")}


def _with_level(history: MetricHistory, times: Sequence[float]) -> MetricHistory:
    places = sorted({bisect_left(history.times, time) for time in times} - {0, len(history.times)})
    return replace(history, boundaries=tuple(Boundary(place, "baseline", "", history.day(place)) for place in places))


def _history(key: SeriesKey, rows: Sequence[ExternalRow], direction: Direction) -> MetricHistory:
    names = tuple(f"row-{place + 1}" for place in range(len(rows)))
    values = tuple(row.value for row in rows)
    metric, times = _metric(direction, values), tuple(row.time for row in rows)
    return MetricHistory(key.platform, key.workload, metric, times, names, names, values, ())


def _metric(direction: Direction, values: Sequence[float | None]) -> Metric:
    """Choose the metric definition with a scale that suits the values.

    A logarithm has no zero and no negative values: with one, differences are shares of the typical size.
    """
    metric = replace(BY_NAME.get(direction.metric, Metric(direction.metric, "", "lower")), worse=direction.worse)
    if metric.scale == "absolute" and any(abs(value) > 1 for value in values if value is not None):
        metric = replace(metric, scale="relative")  # in percent, or a score: no share of one
    if not direction.has_sign or metric.scale != "relative":
        return metric
    sizes = [abs(value) for value in values if value]
    return replace(metric, scale="linear", typical=max(median(sizes), 1e-300) if sizes else 1.0)


def _directions(rows: Sequence[ExternalRow], worse: Mapping[str, Worse], where: str) -> dict[str, Direction]:
    signed = {row.key.metric for row in rows if row.value is not None and row.value <= 0}
    names = sorted({row.key.metric for row in rows})
    for name, way in worse.items():
        if name not in names:
            hint = suggest_or_list(name, names)
            raise ConfigurationError(f"no metric {name!r}", where=where, key=f"--{way}-is-worse", hint=hint)
    stated = {(row.key.metric, row.stated) for row in rows if row.stated}
    by_file, by_tool = dict(stated), {row.key.metric: row.worse for row in rows}
    if twice := [name for name in names if {(name, "higher"), (name, "lower")} <= stated and name not in worse]:
        hint = "judge its suites in files of their own"
        raise InvalidInputError("the file states both directions of this metric", where=where, key=twice[0], hint=hint)
    directions = {}
    for name in names:
        by_name = BY_NAME[name].worse if name in BY_NAME else worse_by_name(name)
        ways: tuple[tuple[str, Worse | None], ...] = (
            ("option", worse.get(name)), ("tool", by_file.get(name)), ("name", by_name), ("tool", by_tool[name]),
            ("assumed", "lower"),
        )  # fmt: skip
        source, way = next((source, way) for source, way in ways if way)
        fields = {"metric": name, "worse": way, "source": source, "has_sign": name in signed}
        directions[name] = Direction.model_validate(fields)
    return directions


def _last_of_each_time(rows: Sequence[ExternalRow]) -> list[ExternalRow]:
    """Return the last row with a value for each time.

    A rerun replaces a run.
    """
    newest: dict[float, ExternalRow] = {}
    for row in rows:
        if row.value is not None or row.time not in newest:
            newest[row.time] = row
    return list(newest.values())


def _missing_nights(rows: Sequence[ExternalRow], last: float) -> int:
    """Return how many nights the series is missing at its end.

    A night is the usual step between its rows.
    """
    late = last - rows[-1].time
    steps = [after.time - before.time for before, after in pairwise(rows)]
    step = median(steps) if steps else _DAY_SECONDS
    nights = round(late / step)
    return nights if nights > 1 else 0


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"
