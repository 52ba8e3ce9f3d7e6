"""The one table of export formats: what is written, where to, and by what."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow.parquet as pq

from plumbline.central import CentralStore
from plumbline.exports.event_files import write_event_files
from plumbline.exports.mlflow_runs import write_mlflow_runs
from plumbline.exports.runs import NightRun, night_runs
from plumbline.exports.tables import nights_table, prometheus_text
from plumbline.history.series import SeriesFile


@dataclass(frozen=True, slots=True)
class Nights:
    """Nights to export: the series of every platform of a suite, and the store of their records."""

    suite: str
    central: CentralStore
    series: Sequence[SeriesFile]
    last: int | None = None
    """Maximum number of nights of each platform."""

    @property
    def runs(self) -> tuple[NightRun, ...]:
        """Return the nights as runs, the platforms one after the other."""
        return tuple(run for series in self.series for run in night_runs(series, self.last))


@dataclass(frozen=True, slots=True)
class Format:
    """One format: its kind of output, and its writer, which returns the number of rows or runs."""

    target: Literal["file", "folder", "address"]
    write: Callable[[Nights, str], int]
    out: str = ""
    """Output without `--out`: `-` is stdout, `$NAME` the content of a variable; "" for none."""
    about: str = ""


def _write_parquet(nights: Nights, out: str) -> int:
    table = nights_table(nights.series, nights.last)
    _replace(Path(out), lambda part: pq.write_table(table, part, compression="zstd"))
    return int(table.num_rows)


def _write_prometheus(nights: Nights, out: str) -> int:
    text = prometheus_text(nights.series)
    if out == "-":
        sys.stdout.write(text)
    else:
        _replace(Path(out), lambda part: part.write_text(text, encoding="utf-8"))
    return sum(bool(file.judged) for file in nights.series)


def _write_tensorboard(nights: Nights, out: str) -> int:
    runs = [run for run in nights.runs if run.record]
    write_event_files(nights.central, runs, Path(out))
    return len(runs)


def _write_mlflow(nights: Nights, out: str) -> int:
    runs = nights.runs
    write_mlflow_runs(nights.central, nights.suite, runs, out)
    return len(runs)


def _replace(out: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside `out`, then move it there: a collector must never read half a file."""
    part = out.with_name(f".{out.name}.part")
    write(part)
    part.replace(out)


FORMATS: Mapping[str, Format] = {
    "parquet": Format("file", _write_parquet, about="one table of all nights, for DuckDB, Polars or pandas"),
    "prometheus": Format("file", _write_prometheus, "-", "the state after the last round, as text"),
    "mlflow": Format("address", _write_mlflow, "$MLFLOW_TRACKING_URI", "a run per training, on a tracking server"),
    "tensorboard": Format("folder", _write_tensorboard, about="event files: numbers of the nights, learning curves"),
}
