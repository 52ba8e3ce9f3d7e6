"""Series of other tools, from CSV or JSON lines.

Columns: time, platform, metric, value. Pure.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from plumbline.errors import InvalidInputError
from plumbline.history.metrics import metric_of
from plumbline.history.segments import MetricHistory

__all__ = ["parse_external"]

_NEEDED = ("time", "metric", "value")


@dataclass(frozen=True, slots=True)
class _Row:
    time: float
    platform: str
    metric: str
    value: float | None


def parse_external(text: str, *, where: str, higher_is_worse: Sequence[str] = ()) -> tuple[MetricHistory, ...]:
    """Return one history per platform and metric, ordered by time.

    Raise `InvalidInputError` with the row and the key. `platform` is optional. A time is ISO 8601 or seconds since
    1970; an empty value, `null` or `nan` is missing.
    """
    rows = [_row(content, f"{where}: row {number}") for number, content in _contents(text, where)]
    if not rows:
        raise InvalidInputError("contains no row", where=where, hint="columns: time, platform, metric, value")
    rows_of: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        rows_of.setdefault((row.platform, row.metric), []).append(row)
    return tuple(
        _line(platform, metric, own_rows, higher_is_worse) for (platform, metric), own_rows in sorted(rows_of.items())
    )


def _line(platform: str, name: str, rows: list[_Row], higher_is_worse: Sequence[str]) -> MetricHistory:
    ordered = sorted(rows, key=lambda row: row.time)
    metric = metric_of(name, worse="higher" if name in higher_is_worse else "lower")
    names = tuple(f"row-{place + 1}" for place in range(len(ordered)))
    values = tuple(row.value for row in ordered)
    return MetricHistory(platform, "external", metric, tuple(row.time for row in ordered), names, names, values, ())


def _contents(text: str, where: str) -> Iterator[tuple[int, Mapping[str, object]]]:
    if not text.lstrip().startswith("{"):
        # Newlines of all systems.
        reader = csv.DictReader(io.StringIO(text, newline=None))
        try:
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                hint = "the first row names the columns: time, platform, metric, value"
                raise InvalidInputError("the column does not exist", where=where, key=missing[0], hint=hint)
            yield from enumerate(reader, start=2)
        except csv.Error as error:
            raise InvalidInputError(f"not CSV: {error}", where=where) from error
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except ValueError as error:
            raise InvalidInputError("not JSON", where=f"{where}: row {number}") from error
        if not isinstance(content, dict):
            raise InvalidInputError("not a JSON object", where=f"{where}: row {number}")
        yield number, content


def _row(content: Mapping[str, object], where: str) -> _Row:
    for name in _NEEDED:
        if name not in content:
            raise InvalidInputError("missing", where=where, key=name)
    metric = str(content["metric"] or "").strip()
    if not metric:
        raise InvalidInputError("missing", where=where, key="metric")
    platform = str(content.get("platform") or "series")
    return _Row(_time(content["time"], where), platform, metric, _value(content["value"], where))


def _time(value: object, where: str) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        try:
            parsed = datetime.fromisoformat(str(value).strip())
        except ValueError as error:
            hint = "ISO 8601, such as 2026-11-22T02:00:00Z, or seconds since 1970"
            raise InvalidInputError(f"{str(value)[:60]!r} is not a time", where=where, key="time", hint=hint) from error
        seconds = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds < 253_402_300_800:
        raise InvalidInputError(f"{str(value)[:60]!r} is not a time after 1970", where=where, key="time")
    return seconds


def _value(value: object, where: str) -> float | None:
    text = "" if value is None else str(value).strip()
    if not text:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise InvalidInputError(f"{text[:60]!r} is not a number", where=where, key="value") from error
    return number if math.isfinite(number) else None
