"""Parser of benchmark tools' result files: CSV, JSON, JSON lines. Pure.

A file becomes rows of a time, a metric and a value, with a platform and a workload where it names them. A wide table,
as Otava reads it, has one column for each metric.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import NamedTuple

from plumbline.cli.exchange.directions import worse_by_name, worse_by_unit
from plumbline.cli.exchange.external_columns import TableChoice, check_apart, columns_of, metrics_of
from plumbline.cli.exchange.external_tools import AsvRow, Content, StatedRow, at, objects
from plumbline.cli.exchange.external_values import number_of, time_of, value_of
from plumbline.judge.history.metrics import Worse
from plumbline.schema.delimited import Place, Records, dialect_of
from plumbline.schema.errors import InvalidInputError

_DATA_JS = "window.BENCHMARK_DATA ="
"""What github-action-benchmark writes before its JSON."""
_COMMENTS = re.compile(r"\A(?:\s*#[^\r\n]*)+")

_HINTS = {
    "metric": "a row has a metric and a value, or each metric has a column of numbers",
    "value": "--metric NAME names a column of numbers",
}

UNNAMED = "series external"
"""Platform and workload of a series whose file names neither."""


class SeriesKey(NamedTuple):
    """Identity of a series."""

    platform: str
    workload: str
    metric: str


@dataclass(frozen=True, slots=True)
class ExternalRow:
    """One value of a series."""

    time: float
    """In seconds since 1970."""
    key: SeriesKey
    value: float | None
    """`None` where it is missing."""
    worse: Worse | None = None
    """Direction that the tool gives to each metric whose name states none."""
    stated: Worse | None = None
    """Direction that the file states for this value."""


def read_rows(
    text: str, where: str, dates: Mapping[str, object], choice: TableChoice
) -> tuple[list[ExternalRow], tuple[str, ...]]:  # fmt: skip
    """Return a file's rows, and the ignored columns and metrics.

    `dates` are those of the revisions that a graph of asv counts.
    """
    contents = list(_contents(text, where, dates, choice))
    keys = list(dict.fromkeys(str(key) for _, content in contents for key in content if key))
    columns = columns_of(keys, choice)
    named = [key for key in keys if key.strip() in choice.metrics]
    metrics: Sequence[str] = ()
    is_wide = "value" not in columns and ("metric" not in columns or bool(named))
    if is_wide:
        metrics = named if choice.metrics else metrics_of(contents, columns)
    ignored = dict.fromkeys(key for key in keys if key not in {*columns.values(), *metrics})
    if is_wide and choice.metrics and not metrics:
        return [], tuple(ignored)
    check_apart(contents, columns, metrics)
    rows = []
    for place, content in contents:
        for metric, value in _values(place, content, columns, metrics if is_wide else None):
            if choice.metrics and metric not in choice.metrics:
                ignored[metric] = None
            else:
                rows.append(_row(place, content, columns, metric, value))
    return rows, tuple(ignored)


def dates_of_revisions(text: str) -> Mapping[str, object]:
    """Return commit dates from an asv site's index; empty for other files."""
    dates = at(_document(text), "revision_to_date") if "revision_to_date" in text else None
    return dates if isinstance(dates, dict) else {}


def holds_rows(text: str, where: str, choice: TableChoice) -> bool:
    """Return whether an asv file has measurements of its own."""
    if PurePath(where).parts[-3:-1] == ("graphs", "summary"):
        return False
    document = _document(text)
    if isinstance(document, list):
        return not all(isinstance(item, str) for item in document)
    if not isinstance(document, dict):
        return True  # another format, or damaged: reading it says so
    if {"results", "data", "stats", "entries"} & document.keys() or isinstance(document.get("benchmarks"), list):
        return True
    columns = columns_of([str(key) for key in document], choice)
    return "time" in columns and ("metric" in columns or bool(metrics_of([(where, document)], columns)))


def _document(text: str) -> object:
    """Parse a JSON document; return `None` for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _values(
    place: str, content: Content, columns: Mapping[str, str], metrics: Sequence[str] | None
) -> list[tuple[str, object]]:
    """Return a row's metrics with their values: of these columns, or the one that the row names (`None`)."""
    for column in ("time",) if metrics is not None else ("time", *({"metric"} & columns.keys()), "value"):
        if columns.get(column) not in content:
            raise InvalidInputError("missing", where=place, key=column, hint=_HINTS.get(column, ""))
    if metrics is None:
        values = [(_metric_of(content, columns), content[columns["value"]])]
    else:
        values = [(name.strip(), content.get(name)) for name in metrics]
    if not values or not values[0][0]:
        raise InvalidInputError("missing", where=place, key="metric", hint=_HINTS["metric"])
    return values


def _metric_of(content: Content, columns: Mapping[str, str]) -> str:
    """Return the metric that a row names, with its unit if only that, or more than the name, states a direction."""
    metric = str(content[columns["metric"]] or "").strip() if "metric" in columns else columns["value"]
    unit = str(content.get(columns.get("unit")) or "").strip()
    way = worse_by_name(metric)
    stated = worse_by_unit(unit) or (way or worse_by_name(unit))
    return f"{metric} ({unit})" if metric and stated != way else metric


def _row(place: str, content: Content, columns: Mapping[str, str], metric: str, value: object) -> ExternalRow:
    """Return the row of one value; each branch is a separate series."""
    platform, workload, branch = (content.get(columns.get(name)) for name in ("platform", "workload", "branch"))
    unnamed = UNNAMED.split()
    workload = " ".join(map(str, filter(None, (workload or unnamed[1], branch))))
    key = SeriesKey(str(platform or unnamed[0]), workload, metric)
    worse: Worse | None = "higher" if isinstance(content, AsvRow) else None
    stated = content.worse if isinstance(content, StatedRow) else None
    return ExternalRow(time_of(content[columns["time"]], place), key, value_of(value, place), worse, stated)


def _contents(text: str, where: str, dates: Mapping[str, object], choice: TableChoice) -> Iterator[tuple[str, Content]]:
    text = text.removeprefix(_DATA_JS)
    start, document = text.lstrip()[:1], _document(text)
    if start not in ("{", "["):
        yield from _csv(text, where, choice)
        return
    if document is None and start == "[":
        raise InvalidInputError("not JSON", where=where)
    if document is None:
        yield from _json_lines(text, where)
        return
    for number, content in enumerate(objects(document, where, dates), start=1):
        yield f"{where}: row {number}", content


def _csv(text: str, where: str, choice: TableChoice) -> Iterator[tuple[str, Content]]:
    table = _COMMENTS.sub(lambda comments: re.sub(r"#.*", "", comments[0]), text)
    opened = partial(io.StringIO, table, newline="")
    dialect = dialect_of(opened, choice.layout, where)
    with opened() as file:
        contents = list(Records(file, dialect, choice.layout, where))
    if dialect.delimiter != ",":
        decimals = {key for key in contents[0][1] if _has_decimal_commas(key, contents)} if contents else set()
        contents = [
            (place, {key: text.replace(",", ".") if key in decimals else text for key, text in content.items()})
            for place, content in contents
        ]
    yield from ((str(place), content) for place, content in contents)


_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(?:,\d{3})+\s*")


def _has_decimal_commas(key: str, contents: Sequence[tuple[Place, Mapping[str, str]]]) -> bool:
    """Return whether a column's numbers have a decimal comma. Raise if it may be one between thousands."""
    texts = [content[key] for _, content in contents]
    commas = [(place, content[key]) for place, content in contents if "," in content[key]]
    is_other = any("." in text or number_of(text.replace(",", "")) is None for text in texts)
    if not commas or is_other or not all(_DECIMAL_COMMA.fullmatch(text) for _, text in commas):
        return False
    if not all(_THOUSANDS.fullmatch(text) for _, text in commas):
        return True
    place, text = commas[0]
    problem = f"the comma of {text.strip()[:60]!r} may be decimal or between thousands"
    hint = "write the numbers of this column with a decimal point, and without marks between thousands"
    raise InvalidInputError(problem, where=str(place), key=key, hint=hint)


def _json_lines(text: str, where: str) -> Iterator[tuple[str, Content]]:
    # A JSON string may contain U+2028, which ends no line.
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if not line.strip():
            continue
        place = f"{where}: row {number}"
        content = _document(line)
        if not isinstance(content, dict):
            raise InvalidInputError("not JSON" if content is None else "not a JSON object", where=place)
        yield place, content
