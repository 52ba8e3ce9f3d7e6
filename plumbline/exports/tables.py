"""Nights of a suite in the formats of other tools: a table for Parquet readers, metrics for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import pyarrow as pa

from plumbline.exports.runs import last_rounds
from plumbline.history.metrics import METRICS
from plumbline.history.series import SeriesFile
from plumbline.schema.verdict import Outcome

_TEXTS = ("suite", "platform", "round", "workload", "record", "spec", "lock", "hardware", "software", "verdict")
_SCHEMA = pa.schema([
    *((name, pa.string()) for name in _TEXTS),
    ("time", pa.timestamp("us", tz="UTC")),
    ("causes", pa.list_(pa.string())),
    *((metric.name, pa.float64()) for metric in METRICS),
])  # fmt: skip


def nights_table(series: Sequence[SeriesFile], last: int | None = None) -> pa.Table:
    """Return one row per night, platform and workload, ordered by time; of the last nights of each platform.

    A round without a record of the platform is a row without workload and metrics. Verdict and causes are the
    platform's; they are null in rounds that are older than the series' verdicts.
    """
    rows = sorted((row for file in series for row in _rows(file, last)), key=lambda row: (row["time"], row["platform"]))
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _rows(series: SeriesFile, last: int | None) -> Iterator[dict[str, Any]]:
    fixed = {"suite": series.suite, "platform": series.platform}
    kept = last_rounds(series, last)
    for place in [place for place, name in enumerate(series.round) if name in kept]:
        night = series.row(place)
        judged = series.judged.get(night.round)
        verdict = {"verdict": judged.verdict, "causes": list(judged.causes)} if judged else {}
        yield fixed | verdict | night.metrics | night.model_dump(exclude={"metrics"})
    for name, judged in series.judged.items():
        if name in kept and name not in series.round:
            time = datetime.fromtimestamp(judged.time, UTC)
            yield {**fixed, "round": name, "time": time, "verdict": judged.verdict, "causes": list(judged.causes)}


def prometheus_text(series: Sequence[SeriesFile]) -> str:
    """Return the state after each platform's last round as Prometheus metrics.

    A metric that this round did not measure is absent, so that no old value looks like tonight's.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    text = "the platform's verdict in its last round"
    verdicts = GaugeMetricFamily("plumbline_verdict", f"1 for {text}, else 0", labels=["suite", "platform", "verdict"])
    text = "end of the platform's last round, in seconds since 1970"
    times = GaugeMetricFamily("plumbline_last_round_timestamp_seconds", text, labels=["suite", "platform"])
    values = {
        metric.name: GaugeMetricFamily(
            f"plumbline_{metric.name}",
            f"{metric.name} of the last round{f', in {metric.unit}' if metric.unit else ''}; {metric.worse} is worse",
            labels=["suite", "platform", "workload"],
        )
        for metric in METRICS
    }
    for file in series:
        if file.judged:
            name, last = list(file.judged.items())[-1]
            for outcome in get_args(Outcome):
                verdicts.add_metric([file.suite, file.platform, outcome], float(outcome == last.verdict))
            times.add_metric([file.suite, file.platform], last.time)
            for workload, metric, value in _last_values(file, name):
                values[metric].add_metric([file.suite, file.platform, workload], value)
    registry = CollectorRegistry()
    registry.register(_Families([verdicts, times, *values.values()]))
    return generate_latest(registry).decode()


def _last_values(series: SeriesFile, round_id: str) -> Iterator[tuple[str, str, float]]:
    places: Mapping[str, int] = {
        series.words[series.workload[place]]: place for place, name in enumerate(series.round) if name == round_id
    }
    for workload, place in places.items():
        for metric in METRICS:
            value = series.metrics.get(metric.name, (None,) * len(series))[place]
            if value is not None:
                yield workload, metric.name, value


class _Families:
    """Collector of metrics that are already known."""

    def __init__(self, families: Sequence[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        yield from self._families
