"""Tables of other tools in every shape that the tools write: the rows that pandas reads, or one clear line."""

from __future__ import annotations

import bz2
import gzip
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from plumbline.cli.exchange.external import parse_external
from plumbline.cli.history import read_texts
from plumbline.cli.main import main

DAYS = [date(2026, 8, 1) + timedelta(night) for night in range(12)]
VALUES = [100.5 + night % 3 for night in range(12)]
MIDNIGHTS = [datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() for day in DAYS]


def table(row: str = "{day},speed,{value}", head: str = "time,metric,value", end: str = "\n") -> str:
    """Return the nights as lines; a row may use `day`, `value`, `n` and `epoch`."""
    rows = [
        row.format(day=day, value=value, n=n, epoch=int(epoch))
        for n, (day, value, epoch) in enumerate(zip(DAYS, VALUES, MIDNIGHTS, strict=True))
    ]
    return end.join([head, *rows]) + end


@dataclass(frozen=True)
class Table:
    """One file, what it is read as, and how pandas reads it."""

    content: str | bytes
    pandas: dict[str, Any] = field(default_factory=dict)
    """Arguments of `pandas.read_csv`; `json` for `read_json`."""
    values: list[float] = field(default_factory=lambda: VALUES)
    times: list[float] = field(default_factory=lambda: MIDNIGHTS)
    metric: str = "speed"
    column: str = "value"
    """Of the values, as pandas names it."""
    time: str = "time"
    unit: str | None = None
    """Of the times, for pandas."""


LATE = [epoch + 2 * 3600 for epoch in MIDNIGHTS]
OBJECTS = [{"time": str(day), "metric": "speed", "value": value} for day, value in zip(DAYS, VALUES, strict=True)]
LINES = table().splitlines()
MESSAGES = table("{day},speed,fix {n},{value}", "time,metric,message,value")
READ = {
    "commas": Table(table()),
    "semicolons": Table(table().replace(",", ";"), {"sep": ";"}),
    "tabs": Table(table().replace(",", "\t"), {"sep": "\t"}),
    "pipes": Table(table().replace(",", "|"), {"sep": "|"}),
    "decimal commas": Table(
        table("{day};speed;{value}", "time;metric;value").replace(".", ","), {"sep": ";", "decimal": ","}
    ),
    "a byte order mark": Table(table().encode("utf-8-sig")),
    "UTF-16, as Excel writes it": Table(
        table().replace(",", "\t").encode("utf-16"), {"sep": "\t", "encoding": "utf-16"}
    ),
    "UTF-32": Table(table().encode("utf-32"), {"encoding": "utf-32"}),
    "gzip": Table(gzip.compress(table().encode()), {"compression": "gzip"}),
    "bzip2": Table(bz2.compress(table().encode()), {"compression": "bz2"}),
    "lines of Windows": Table(table(end="\r\n")),
    "lines of old Macs": Table(table(end="\r")),
    "no newline at the end": Table(table().rstrip("\n")),
    "empty lines between the rows": Table(table(end="\n\n")),
    "all fields quoted": Table(table('"{day}","speed","{value}"', '"time","metric","value"')),
    "newlines in a quoted message": Table(table('{day},speed,"two\nlines",{value}', "time,metric,message,value")),
    "delimiters in a quoted message": Table(table('{day},speed,"a, ""b"", c",{value}', "time,metric,message,value")),
    "lone quotes between tabs": Table(
        MESSAGES.replace(",", "\t").replace("fix 3", '"fix 3').replace("fix 6", 'fix 6"'), {"sep": "\t", "quoting": 3}
    ),
    "comments before the header": Table("# of a benchmark\n\n# two lines\n" + table(), {"comment": "#"}),
    "pandas' own index": Table(table("{n},{day},speed,{value}", ",time,metric,value"), {"index_col": 0}),
    "a delimiter at the end of each row": Table(table("{day},speed,{value},", "time,metric,value,")),
    "spaces after the commas": Table(table("{day}, speed, {value}", "time, metric, value"), {"skipinitialspace": True}),
    "names of columns in other cases": Table(table(head="Time,Metric,Value"), time="Time", column="Value"),
    "a wide table": Table(table("{day},{value},ok", "time,speed,status"), column="speed"),
    "runs of MLflow": Table(
        table(
            "a{n},3,FINISHED,{day} 02:00:00.000000+00:00,{day} 03:00:00.000000+00:00,{value},0.{n},main",
            "run_id,experiment_id,status,start_time,end_time,metrics.speed,params.rate,tags.branch",
        ),
        times=LATE, metric="metrics.speed", column="metrics.speed", time="start_time",
    ),
    "a wide table with a delimiter at the end": Table(table("{day},{value},", "time,speed,"), column="speed"),
    "runs of which one failed": Table(
        table("{day},FAILED,speed,1\n{day},FINISHED,speed,{value}", "time,status,metric,value"),
        {"skiprows": lambda row: row % 2},
    ),
    "messages of runs": Table(
        table("{day},fix {n},speed,{value}\n{day},new {n},speed,{value}", "time,note,metric,value"),
        {"skiprows": lambda row: row % 2},
    ),
    "two columns of times": Table(table("{day},{epoch},{value}", "time,created,speed"), column="speed"),
    "rows out of order": Table("\n".join([LINES[0], *sorted(LINES[1:], key=lambda row: row[-3:])])),
    "missing cells": Table(
        table().replace(f"08,speed,{VALUES[7]}", "08,speed,"), values=[*VALUES[:7], float("nan"), *VALUES[8:]]
    ),
    "NaN, null and n/a": Table(
        table().replace(f"02,speed,{VALUES[1]}", "02,speed,NaN").replace(f"05,speed,{VALUES[4]}", "05,speed,null")
        .replace(f"09,speed,{VALUES[8]}", "09,speed,n/a"),
        values=[float("nan") if n in (1, 4, 8) else value for n, value in enumerate(VALUES)],
    ),
    "numbers in scientific notation": Table(table("{day},speed,{value}e3"), values=[value * 1e3 for value in VALUES]),
    "seconds since 1970": Table(table("{epoch},speed,{value}"), unit="s"),
    "milliseconds": Table(table("{epoch}000,speed,{value}"), unit="ms"),
    "microseconds": Table(table("{epoch}000000,speed,{value}"), unit="us"),
    "nanoseconds": Table(table("{epoch}000000000,speed,{value}"), unit="ns"),
    "UTC by a Z": Table(table("{day}T02:00:00Z,speed,{value}"), times=LATE),
    "an offset": Table(table("{day}T04:00:00+02:00,speed,{value}"), times=LATE),
    "offsets without minutes": Table(table("{day} 04:00:00+02,speed,{value}"), times=LATE),
    "two offsets, as around the end of summer time": Table(
        "\n".join(
            row.replace("+00:00", "+02:00").replace("T02", "T04") if n < 6 else row
            for n, row in enumerate(table("{day}T02:00:00+00:00,speed,{value}").splitlines())
        ),
        times=LATE,
    ),
    "the hour that summer time repeats": Table(
        "time,metric,value\n2026-10-25T02:30:00+02:00,speed,1\n2026-10-25T02:30:00+01:00,speed,2\n",
        values=[1.0, 2.0],
        times=[datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp() for hour in (0, 1)],
    ),
    "nanoseconds in a date": Table(table("{day}T02:00:00.000000000Z,speed,{value}"), times=LATE),
    "slashes in a date": Table(table().replace("2026-08-", "2026/08/")),
    "a date as one number": Table(table().replace("2026-08-", "202608"), {"dtype": {"time": str}}),
    "a JSON array": Table(
        json.dumps(OBJECTS), {"json": {}},
    ),
    "a JSON array in UTF-16": Table(
        json.dumps(OBJECTS).encode("utf-16"), {"json": {"encoding": "utf-16"}},
    ),
    "JSON lines": Table(
        "\n".join(map(json.dumps, OBJECTS)), {"json": {"lines": True}},
    ),
    "JSON lines of a wide table": Table(
        "\n".join(json.dumps({"time": row["time"], "speed": row["value"]}) for row in OBJECTS),
        {"json": {"lines": True}},
        column="speed",
    ),
}  # fmt: skip


def series_of(path: Path) -> dict[str, tuple[float, ...]]:
    """Return time, value, time, value, ... of each series by its metric."""
    texts, unread = read_texts(path)
    histories = parse_external(texts, where=str(path), unread=unread).histories
    return {
        history.metric.name: sum(zip(history.times, pd.Series(history.values, dtype=float), strict=True), ())
        for history in histories
    }


def frame_of(path: Path, read: Table) -> pd.DataFrame:
    if "json" in read.pandas:
        return pd.read_json(path, dtype=False, **read.pandas["json"])
    return pd.read_csv(path, **read.pandas)


@pytest.mark.parametrize("name", READ)
def test_a_table_has_the_rows_that_pandas_reads(tmp_path: Path, name: str) -> None:
    read, path = READ[name], tmp_path / "series"
    path.write_bytes(read.content if isinstance(read.content, bytes) else read.content.encode())
    expected = sum(zip(read.times, read.values, strict=True), ())
    series = series_of(path)
    assert list(series) == [read.metric]
    assert series[read.metric] == pytest.approx(expected, nan_ok=True)
    frame = frame_of(path, read)
    times = pd.to_datetime(frame[read.time], unit=read.unit, utc=True, format=None if read.unit else "ISO8601")
    rows = sorted(zip((time.timestamp() for time in times), frame[read.column], strict=True), key=lambda row: row[0])
    assert sum(rows, ()) == pytest.approx(expected, nan_ok=True)


REFUSED: dict[str, tuple[str | bytes, str, int | None]] = {
    "a name of two columns": (table("{day},speed,{value},7", "time,metric,value,value"), "value: more than one", 12),
    "a metric of two columns": (table("{day},{value},7", "time,speed,speed"), "speed: more than one column has", 12),
    "a metric of two columns, one after a space": (
        table("{day},{value},7", "time,speed, speed"), "speed: more than one column has", 12,
    ),
    "two columns of the time": (table("{day},2020-01-01,{value}", "time,time,speed"), "time: more than one", 12),
    "a file that is cut off": (table()[:-8], "row 13: has fewer fields than the header", 12),
    "a wide table that is cut off": (table("{day},{value},0.4", "time,speed,loss")[:-6], "row 13: has fewer", 12),
    "gzip that is cut off": (gzip.compress(table().encode())[:-20], "the gzip stream is damaged or cut off", None),
    "rows that a quote joins": (
        MESSAGES.replace("fix 3", '"fix 3').replace("fix 6", 'fix 6"'), "row 5: a quote opens a text that", 9,
    ),
    "a quote that never ends": (MESSAGES.replace("fix 3", '"fix 3'), "row 5: not CSV in UTF-8: unexpected end", None),
    "two files in one": (table() * 2, "row 14: repeats the header", 25),
    "more fields than columns": (table("{day},speed,15,012.3"), "row 2: has more fields than the header", 12),
    "spaces between thousands": (table("{day},15 012.{n},0.4", "time,speed,loss"), "row 2: speed: '15 012.0'", 12),
    "points between thousands": (
        table("{day};1.234,5", "time;speed"), "row 2: speed: '1.234,5' is not a number", 12,
    ),
    "a number as Python writes it": (table("{day},speed,1_000"), "row 2: value: '1_000' is not a number", 12),
    "digits of another script": (table("{day},speed,\uff11\uff12"), "row 2: value: '\uff11\uff12' is not a", 12),
    "numbers of days, as spreadsheets count": (table("460{n:02},speed,{value}"), "the first day of 1970", 12),
    "numbers of runs": (table("{n},speed,{value}"), "time: all rows are of the first day of 1970", 12),
    "years": (table("20{n:02},speed,{value}"), "time: all rows are of the first day of 1970", 12),
    "a column of values without a name": (table("{day},0.4,{value}", "time,loss,"), "row 2: header: a column of", 12),
    "two machines in a column": (
        table("{day},A100,speed,{value}\n{day},H100,speed,9", "time,gpu,metric,value"),
        "row 3: gpu: rows of one time and metric differ in this column", 24,
    ),
    "two tags of InfluxDB": (
        table(
            "{day},speed,{value},0,eu,x\n{day},speed,7,1,eu,x\n{day},speed,8,0,us,x\n{day},speed,9,1,us,x",
            "_time,_field,_value,cpu,region,user",
        ),
        "row 3: cpu: rows of one time and metric differ in this column", 48,
    ),
    "two settings of a wide table": (
        table("{day},small,{value}\n{day},big,9", "time,config,speed"), "row 3: config: rows of one time and", 24,
    ),
    "metrics in an object, JSON lines": (
        "\n".join(json.dumps({"time": str(day), "loss": 1, "metrics": {"speed": 9.5}}) for day in DAYS),
        "row 1: metrics: \"{'speed': 9.5}\" is not a number", 12,
    ),
    "JSON of values in a list": (
        json.dumps([{"time": str(day), "loss": 1, "speed": [9, 8.5]} for day in DAYS]),
        "row 1: speed: '[9, 8.5]' is not a number", 12,
    ),
    "JSON of two lists": (
        json.dumps({"data": OBJECTS, "more": OBJECTS}), "more: is beside `data` and would be left out", 12,
    ),
    "days before months": (table("01/{n}/2026,speed,{value}"), "row 2: time: '01/0/2026' is not a time", 12),
    "a zone by its name": (table("{day} 02:00 Europe/Berlin,speed,{value}"), "is not a time", 12),
    "Latin-1": (table("{day},J\xf6rg,{value}").encode("latin-1"), "is not UTF-8 text (hint: save it as UTF-8)", None),
    "a workbook": (b"PK\x03\x04" + bytes(100), "is a ZIP archive (hint: unpack it", 0),
    "a pointer of Git LFS": (
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "git lfs pull", 2,
    ),
    "a page of a proxy": ("<!DOCTYPE html>\n<html></html>\n", "time: the column does not exist", 1),
    "no row": ("time,metric,value\n", "contains no row", 0),
    "nothing": ("", "contains no row", None),
    "JSON that is cut off": ('[{"time": "2026-08-01", "metric": "speed"', "not JSON", None),
    "JSON lines that are cut off": ('{"time": 1, "metric": "a", "value": 1}\n{"time": 2, "me', "row 2: not JSON", None),
}  # fmt: skip
"""By name: the content, a part of the one line, and how many rows pandas reads without a word, if it reads the file."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_whose_rows_are_not_clear_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, words, rows = REFUSED[name]
    path = tmp_path / "series.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["history", "--from", str(path)]) == 4
    err = capsys.readouterr().err.strip()
    assert words in err
    assert "\n" not in err
    try:
        if "JSON" in name:
            read = len(pd.read_json(path, lines="lines" in name))
        else:
            read = len(pd.read_csv(path, compression="gzip" if "gzip" in name else None))
    except (ValueError, EOFError):
        read = None
    assert read == rows
