"""Columns of other tools' tables: time, metrics, and what tells one series from another. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from plumbline.cli.exchange.external_tools import Content
from plumbline.cli.exchange.external_values import number_of, seconds_of
from plumbline.schema.delimited import Layout
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


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Columns and metrics that a person names; empty ones are found by their names and values."""

    time: str = ""
    metrics: tuple[str, ...] = ()

    @property
    def layout(self) -> Layout:
        """Return how a delimited file is read."""
        return Layout(lambda names: "time" in columns_of(names, self), self._time_of, unit="row")

    def _time_of(self, names: Sequence[str], where: str) -> Callable[[Sequence[str]], str]:
        """Return a reader of whether a record has a time. Raise for a header without one, or with a name twice."""
        time = columns_of(names, self).get("time")
        if time is None:
            hint = (
                "the first row names the columns: time, platform, metric, value; --time COLUMN names that of the time"
            )
            raise InvalidInputError("the column does not exist", where=where, key=self.time or "time", hint=hint)
        if twice := next((name for name, count in Counter(map(str.strip, names)).items() if name and count > 1), None):
            raise InvalidInputError("more than one column has this name", where=where, key=twice)
        place = names.index(time)
        return lambda record: "" if seconds_of(record[place]) is None else "time"


def columns_of(keys: Sequence[str], choice: TableChoice) -> dict[str, str]:
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


def check_apart(contents: Sequence[tuple[str, Content]], columns: Mapping[str, str], metrics: Sequence[str]) -> None:
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


def metrics_of(contents: Sequence[tuple[str, Content]], columns: Mapping[str, str]) -> list[str]:
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
