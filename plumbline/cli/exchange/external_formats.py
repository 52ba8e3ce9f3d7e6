"""Rows of the files that benchmark tools write, as CSV, JSON or JSON lines. Pure.

A file becomes rows of a time, a metric and a value, with a platform and a workload where it names them. A wide table,
as Otava reads it, has one column for each metric.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TextIO

from plumbline.cli.exchange.directions import worse_by_name
from plumbline.cli.exchange.external_tools import AsvRow, Content, field, objects
from plumbline.cli.exchange.external_values import number_of, seconds_of
from plumbline.judge.history.metrics import Worse
from plumbline.schema.delimited import Layout, Records, dialect_of
from plumbline.schema.errors import InvalidInputError

_NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        "time", "timestamp", "commit_timestamp", "date", "datetime", "night", "start_time", "created", "created_at",
        "wall time", "wall_time", "_time", "_timestamp",
    ),
    "metric": ("metric", "measure", "benchmark_name", "benchmark", "name", "_field"),
    "value": ("value", "single_value_summary", "mean", "_value"),
    "platform": ("platform", "testbed", "machine", "host", "hardware_hash", "hardware"),
    "workload": ("workload", "case_text_id", "case_id"),
    "branch": ("branch",),
    "unit": ("unit", "units"),
}  # fmt: skip
"""Names of each column, the first one preferred."""
_ATTRIBUTE = re.compile(
    r"commit(_hash)?|hash|sha|revision|version|build|run|(.*_)?id|index|seed|epoch|_?step|iteration|(params|tags)\..*"
    r"|status|state|attempt|_wandb"
)
"""Columns of a run that are neither metrics, also if they are numbers, nor what tells two series apart."""
_MEASURED = re.compile(r"[+-]?[$€£]?\s?\d[\d.,:'\u2019\s]*(?:[A-Za-zµ%/€]{1,8})?")
"""A number with a unit, or with marks between thousands, or a duration: a value for people."""
_DATA_JS = "window.BENCHMARK_DATA ="
"""What github-action-benchmark writes before its JSON."""
_COMMENTS = re.compile(r"\A(?:\s*#[^\r\n]*)+")


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Columns and metrics that a person names; empty ones are found by their names and values."""

    time: str = ""
    metrics: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """Return how a delimited file is read."""
        return Layout(lambda names: "time" in _columns(names, self), self._time_of, unit="row")

    def _time_of(self, names: Sequence[str], where: str) -> Callable[[Sequence[str]], str]:
        """Return a reader of whether a record has a time. Raise for a header without one, or with a name twice."""
        time = _columns(names, self).get("time")
        if time is None:
            hint = (
                "the first row names the columns: time, platform, metric, value; --time COLUMN names that of the time"
            )
            raise InvalidInputError("the column does not exist", where=where, key=self.time or "time", hint=hint)
        if twice := next((name for name in names if name.strip() and names.count(name) > 1), None):
            raise InvalidInputError("more than one column has this name", where=where, key=twice)
        place = names.index(time)
        return lambda record: "" if seconds_of(record[place]) is None else "time"


@dataclass(frozen=True, slots=True)
class ExternalRow:
    """One value, as text or as a number, with its place in the file."""

    where: str
    time: object
    metric: str
    value: object
    platform: str
    workload: str
    worse: Worse | None = None
    """Direction that the tool gives to each metric whose name states none."""


def read_rows(
    text: str, where: str, dates: Mapping[str, object] = {}, choice: TableChoice = TableChoice()
) -> tuple[list[ExternalRow], tuple[str, ...]]:  # fmt: skip
    """Return the rows of a file, and the columns that are ignored.

    `dates` are those of the revisions that a graph of asv counts.
    """
    contents = list(_contents(text, where, dates, choice))
    keys = list(dict.fromkeys(str(key) for _, content in contents for key in content if key))
    columns = _columns(keys, choice)
    named = [key for key in keys if key.strip() in choice.metrics]
    if "value" in columns or ("metric" in columns and not named):
        _check_apart(contents, columns, ())
        return [_long(place, content, columns) for place, content in contents], _others(keys, columns)
    metrics = named if choice.metrics else _metrics(contents, columns)
    if choice.metrics and not metrics:
        return [], _others(keys, columns)
    _check_apart(contents, columns, metrics)
    rows = [row for place, content in contents for row in _wide(place, content, columns, metrics)]
    return rows, _others(keys, {**columns, **{key: key for key in metrics}})


def dates_of_revisions(text: str) -> Mapping[str, object]:
    """Return the revisions' dates from an asv site's index; empty for other files."""
    dates = field(_document(text), "revision_to_date") if "revision_to_date" in text else None
    return dates if isinstance(dates, dict) else {}


def holds_rows(text: str, where: str, choice: TableChoice = TableChoice()) -> bool:
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
    columns = _columns([str(key) for key in document], choice)
    return "time" in columns and ("metric" in columns or bool(_metrics([(where, document)], columns)))


def _document(text: str) -> object:
    """Return a JSON document. `None` for other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _others(keys: Iterable[str], used: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in used.values())


def _columns(keys: Sequence[str], choice: TableChoice) -> dict[str, str]:
    """Return the file's name of each known column."""
    by_name = {key.strip().lower(): key for key in reversed(keys)}
    found = {}
    for column, names in {**_NAMES, **({"time": (choice.time.lower(),)} if choice.time else {})}.items():
        name = next((name for name in names if name in by_name), None)
        if name is not None:
            found[column] = by_name[name]
    if "metric" not in found and not {"value", "unit"} <= found.keys():  # Conbench's history names no benchmark
        found.pop("value", None)
        found.pop("unit", None)
    return found


def _long(place: str, content: Content, columns: Mapping[str, str]) -> ExternalRow:
    for column in ("time", *({"metric"} & columns.keys()), "value"):
        if columns.get(column) not in content:
            hint = "--metric NAME names a column of numbers"
            raise InvalidInputError("missing", where=place, key=column, hint=hint if column == "value" else "")
    metric = str(content[columns["metric"]] or "").strip() if "metric" in columns else columns["value"]
    if not metric:
        raise InvalidInputError("missing", where=place, key="metric")
    unit = str(content.get(columns.get("unit")) or "").strip()
    if unit and worse_by_name(metric) is None and worse_by_name(unit) is not None:
        metric = f"{metric} ({unit})"
    worse: Worse | None = "higher" if isinstance(content, AsvRow) else None
    time, value = content[columns["time"]], content[columns["value"]]
    return ExternalRow(place, time, metric, value, *_series(content, columns), worse)


def _series(content: Content, columns: Mapping[str, str]) -> tuple[str, str]:
    """Return platform and workload; each branch is a separate series."""
    platform, workload, branch = (content.get(columns.get(name)) for name in ("platform", "workload", "branch"))
    return str(platform or "series"), " ".join(map(str, filter(None, (workload or "external", branch))))


def _check_apart(contents: Sequence[tuple[str, Content]], columns: Mapping[str, str], metrics: Sequence[str]) -> None:
    """Raise if rows of one time and metric are told apart by columns that name no series: one would hide the others.

    Each value of such a column, as the name of a machine, returns at other times; a message does not.
    """
    own = [columns[name] for name in columns if name not in ("value", "unit")]
    keys = [tuple(str(content.get(key)) for key in own) for _, content in contents]
    if len(set(keys)) == len(keys):
        return
    names = [
        name
        for name in dict.fromkeys(str(key) for _, content in contents for key in content)
        if name not in (*columns.values(), *metrics) and not _ATTRIBUTE.fullmatch(name.strip().lower())
        and min(Counter(str(content.get(name)) for _, content in contents).values()) > 1
    ]  # fmt: skip
    cells = [
        (key, *(str(content.get(name)) for name in names)) for key, (_, content) in zip(keys, contents, strict=True)
    ]
    if len(set(cells)) == len(cells):
        last = next(n for n, key in enumerate(keys) if key in keys[:n])
        first = cells[keys.index(keys[last])]
        key = ", ".join(name for n, name in enumerate(names, start=1) if first[n] != cells[last][n])
        problem = "rows of one time and metric differ in this column, and the last one would hide the others"
        hint = "name the column `platform` or `workload`, or leave it out of the file"
        raise InvalidInputError(problem, where=contents[last][0], key=key, hint=hint)


def _metrics(contents: Sequence[tuple[str, Content]], columns: Mapping[str, str]) -> list[str]:
    """Return the columns of a wide table whose values are numbers.

    Raise `InvalidInputError` for a column with numbers and text, or of numbers with units: it would be left out.
    """
    keys = list(dict.fromkeys(str(key) for _, content in contents for key in content))
    metrics = []
    for key in keys:
        if key in columns.values() or _ATTRIBUTE.fullmatch(name := key.strip().lower()) or name in _NAMES["time"]:
            continue
        cells = [(place, content.get(key)) for place, content in contents]
        given = [(place, value) for place, value in cells if value is not None and str(value).strip()]
        if given and not name and key != keys[0]:  # the first one is pandas' index
            hint = "name it in the first row"
            raise InvalidInputError("a column of values has no name", where=given[0][0], key="header", hint=hint)
        texts = [(place, value) for place, value in given if number_of(value) is None]
        if texts and (len(texts) < len(given) or all(_is_measured(value) for _, value in texts)):
            place, value = texts[0]
            hint = "leave the cell of a missing value empty, or choose the columns to judge with --metric NAME"
            raise InvalidInputError(f"{str(value)[:60]!r} is not a number", where=place, key=key, hint=hint)
        if given and name and not texts:
            metrics.append(key)
    return metrics


def _is_measured(value: object) -> bool:
    """Return whether a value is a number with a unit, or several numbers: not what describes a run."""
    if isinstance(value, (dict, list)):
        inner = list(value.values() if isinstance(value, dict) else value)
        return bool(inner) and all(isinstance(number, (int, float)) for number in inner)
    return bool(_MEASURED.fullmatch(str(value).strip()))


def _wide(place: str, content: Content, columns: Mapping[str, str], metrics: Sequence[str]) -> Iterator[ExternalRow]:
    if "time" not in columns or columns["time"] not in content:
        raise InvalidInputError("missing", where=place, key="time")
    if not metrics:
        hint = "a row has a metric and a value, or each metric has a column of numbers"
        raise InvalidInputError("missing", where=place, key="metric", hint=hint)
    for name in metrics:
        yield ExternalRow(place, content[columns["time"]], name.strip(), content.get(name), *_series(content, columns))


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

    def opened() -> AbstractContextManager[TextIO]:
        return io.StringIO(table, newline="")

    dialect = dialect_of(opened, choice.layout, where)
    with opened() as file:
        for place, content in Records(file, dialect, choice.layout, where):
            points = content if dialect.delimiter == "," else {key: _point(content[key]) for key in content}
            yield str(place), points


def _point(value: object) -> object:
    """Replace a number's decimal comma by a point."""
    if isinstance(value, str) and value.count(",") == 1 and value.strip().lstrip("+-").replace(",", "").isdigit():
        return value.replace(",", ".")
    return value


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
