"""Series of simulated nights, built as the store holds them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from plumbline.judge.history.allowed import Allowed, allowed_for
from plumbline.judge.history.decision import Answers
from plumbline.judge.history.metrics import METRICS, extended
from plumbline.judge.history.night import LineDecision, call_entry, judge_lines
from plumbline.judge.history.segments import MetricHistory, lines_of
from plumbline.schema.series import NightRow, SeriesFile

BEGIN = datetime(2026, 1, 1, 2, tzinfo=UTC)
ALLOWED = allowed_for(num_platforms=4, num_series=40)


def night(index: int, metrics: dict[str, float | None], **changes: object) -> NightRow:
    content = {
        "record": f"r{index:05d}", "round": f"round-{index:05d}", "time": BEGIN + timedelta(days=index),
        "workload": "bert", "spec": "spec-1", "lock": "lock-1", "hardware": "A10G", "software": "s-1",
        "metrics": metrics, **changes,
    }  # fmt: skip
    return NightRow.model_validate(content)


def series_of(values: np.ndarray, metric: str = "throughput", **changes: object) -> SeriesFile:
    rows = [night(index, {metric: float(value)}, **changes) for index, value in enumerate(values)]
    return extended(SeriesFile(suite="nightly", platform="aws"), rows)


def line_of(series: SeriesFile, accepted: list[datetime] | None = None) -> MetricHistory:
    return lines_of(series, METRICS, {"bert": accepted or []})[0]


def noise(seed: int, count: int, level: float = 100.0, sd: float = 0.01) -> np.ndarray:
    return level * np.exp(np.random.default_rng(seed).normal(0, sd, count))


def run_nights(
    values: np.ndarray,
    rows: list[dict[str, object]] | None = None,
    *,
    begin: int = 0,
    allowed: Allowed = ALLOWED,
    accepted=None,
    answered=None,
) -> tuple[SeriesFile, list[tuple[int, LineDecision]]]:
    """Judge night after night as the product does, the series file in between; what is more than quiet.

    `answered(index, decision)` returns the answers of tonight's experiments; without it, software is equal and reruns
    repeat the night.
    """
    series = SeriesFile(suite="nightly", platform="aws")
    found = []
    for index, value in enumerate(values):
        row = night(index, {"throughput": float(value)}, **((rows or [{}] * len(values))[index]))
        series = extended(series, [row])
        if index < begin:
            continue
        stamps = [BEGIN + timedelta(days=day) for day in (accepted or []) if day <= index]
        lines = lines_of(series, METRICS, {"bert": stamps})
        (one,) = judge_lines(lines, allowed, software={("bert", "throughput"): "can-differ" if answered else "equal"})
        while one.decision.needs:
            given = answered(index, one) if answered else _repeated(value)
            (one,) = judge_lines(
                lines,
                allowed,
                {("bert", "throughput"): given},
                {("bert", "throughput"): "can-differ" if answered else "equal"},
            )
        entry = call_entry(one)
        series = extended(series, [], [entry] if entry else [])
        if one.reason not in ("quiet", "learning"):
            found.append((index, one))
    return series, found


def _repeated(value: float):
    return Answers(reruns=(-float(np.log(value)),) * 4)
