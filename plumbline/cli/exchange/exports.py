"""Export of a suite's nights to the formats of other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.cli.exchange.event_files import write_event_files
from plumbline.cli.exchange.mlflow_runs import write_mlflow_runs
from plumbline.cli.exchange.runs import NightRun, night_runs
from plumbline.judge.history.metrics import METRICS
from plumbline.night.central import CentralStore
from plumbline.schema.series import SeriesFile
from plumbline.schema.verdict import Outcome

_TEXTS = ("suite", "platform", "round", "workload", "record", "spec", "lock", "hardware", "software", "verdict")
_SCHEMA = pa.schema([
    *((name, pa.string()) for name in _TEXTS),
    ("time", pa.timestamp("us", tz="UTC")),
    ("causes", pa.list_(pa.string())),
    *((metric.name, pa.float64()) for metric in METRICS),
])  # fmt: skip


def nights_table(runs: Sequence[NightRun]) -> pa.Table:
    """Return a table with one row per night, platform and workload, by time.

    A round without a record of the platform is a row without workload and metrics. Verdict and causes are the
    platform's; they are null in the nights of a rebuilt series.
    """
    ordered = sorted(runs, key=lambda run: (run.time, run.platform))
    return pa.Table.from_pylist([_row(run) for run in ordered], schema=_SCHEMA)


def _row(run: NightRun) -> dict[str, Any]:
    texts = {name: getattr(run, name) or None for name in _TEXTS if hasattr(run, name)}
    causes = list(run.causes) if run.verdict else None
    return {**texts, **run.stack, **run.metrics, "time": datetime.fromtimestamp(run.time, UTC), "causes": causes}


def prometheus_text(series: Sequence[SeriesFile]) -> str:
    """Return each platform's latest results as Prometheus metrics.

    A metric that this round did not measure is absent, so that no old value looks like tonight's.
    """
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    text = "the platform's verdict in its last round"
    labels = ["suite", "platform", "verdict"]
    verdicts = Gauge("plumbline_verdict", f"1 for {text}, else 0", labels, registry=registry)
    text = "end of the platform's last round, in seconds since 1970"
    times = Gauge("plumbline_last_round_timestamp_seconds", text, labels[:2], registry=registry)
    labels = ["suite", "platform", "workload"]
    values = {
        metric.name: Gauge(
            f"plumbline_{metric.name}",
            f"{metric.name} of the last round{f', in {metric.unit}' if metric.unit else ''}; {metric.worse} is worse",
            labels,
            registry=registry,
        )
        for metric in METRICS
    }
    for file in series:
        if file.judged:
            name, last = list(file.judged.items())[-1]
            for outcome in get_args(Outcome):
                verdicts.labels(file.suite, file.platform, outcome).set(float(outcome == last.verdict))
            times.labels(file.suite, file.platform).set(last.time)
            for run in night_runs(file):
                for metric in values.keys() & run.metrics if run.round == name else ():
                    values[metric].labels(file.suite, file.platform, run.workload).set(run.metrics[metric])
    return generate_latest(registry).decode()


@dataclass(frozen=True, slots=True)
class Nights:
    """Nights to export: all platforms' series, and the store with their records."""

    suite: str
    central: CentralStore
    series: Sequence[SeriesFile]
    last: int | None = None
    """Maximum number of nights of each platform."""

    @property
    def runs(self) -> tuple[NightRun, ...]:
        """Return the nights as runs, grouped by platform."""
        return tuple(run for series in self.series for run in night_runs(series, self.last))


@dataclass(frozen=True, slots=True)
class Format:
    """Export format: kind of output, and the function that writes it."""

    target: Literal["file", "folder", "address"]
    write: Callable[[Nights, str], int]
    out: str = ""
    """Output without `--out`: `-` is stdout, `$NAME` the content of a variable; "" for none."""
    about: str = ""


def _write_parquet(nights: Nights, out: str) -> int:
    table = nights_table(nights.runs)
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
    """Replace `out` atomically, so that no collector reads a partial file."""
    part = out.with_name(f".{out.name}.part")
    write(part)
    part.replace(out)


FORMATS: Mapping[str, Format] = {
    "parquet": Format("file", _write_parquet, about="one table of all nights, for DuckDB, Polars or pandas"),
    "prometheus": Format("file", _write_prometheus, "-", "the state after the last round, as text"),
    "mlflow": Format("address", _write_mlflow, "$MLFLOW_TRACKING_URI", "a run per training, on a tracking server"),
    "tensorboard": Format("folder", _write_tensorboard, about="event files: numbers of the nights, learning curves"),
}
