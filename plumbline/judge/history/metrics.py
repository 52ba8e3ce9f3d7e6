"""Nightly metrics: source in the record, direction, scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plumbline.judge.statistics.samples import HUGE, Values
from plumbline.schema import limits
from plumbline.schema.record import RunRecord

Worse = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of one metric, measured once per night."""

    name: str
    unit: str
    worse: Worse
    scale: Literal["relative", "absolute", "linear"] = "relative"
    floor: float = limits.LEAST_SD
    """Minimum SD of a night, on the scale: smaller differences do not count."""
    part_of: str = ""
    """Metric of the whole: a part that grows without the whole is a shift of cost."""
    typical: float = 1.0
    """Size of a value on the linear scale, whose differences are shares of it."""

    def scores(self, values: Sequence[float | None]) -> Values:
        """Convert values to scores, for which higher is worse.

        Scores are signed logs on the relative scale, otherwise signed values, on the linear scale as shares of the
        typical size. A missing or non-finite value, and a non-positive value on the relative scale, become `nan`.
        """
        # NumPy converts `None` to `nan`.
        array = np.array(values, dtype=np.float64)
        array[~np.isfinite(array)] = math.nan
        if self.scale == "relative":
            array[array <= 0] = math.nan
            array = np.log(array)
        with np.errstate(over="ignore"):  # an infinite share is clipped
            array = np.clip(array / self.typical, -HUGE, HUGE)
        return -array if self.worse == "lower" else array

    def value(self, score: float) -> float:
        """Convert a score back to the metric's value."""
        plain = -score if self.worse == "lower" else score
        return math.exp(plain) if self.scale == "relative" else plain * self.typical + 0.0

    def change(self, score: float) -> float:
        """Convert a score difference to a displayed change (negative is lower)."""
        plain = -score if self.worse == "lower" else score
        return math.expm1(min(plain, 700.0)) if self.scale == "relative" else plain


METRICS = (
    Metric("throughput", "samples/s", "lower"),
    Metric("slow_step", "s", "higher", floor=limits.PART_SD, part_of="throughput"),
    Metric("data_wait", "s", "higher", floor=limits.PART_SD, part_of="throughput"),
    Metric("peak_memory", "bytes", "higher"),
    Metric("first_step", "s", "higher", floor=limits.PART_SD),
    Metric("accuracy", "", "lower", "absolute"),
    Metric("evaluation_loss", "", "higher"),
)
BY_NAME = {metric.name: metric for metric in METRICS}


def read_metrics(record: RunRecord) -> dict[str, float | None]:
    """Return all metrics of a record; `None` for those not measured."""
    speed, learn = record.evidence.speed, record.evidence.learn
    first = [record.timings[name] for name in ("import", "stage", "build") if name in record.timings]
    values: dict[str, float | None] = {metric.name: None for metric in METRICS}
    values["first_step"] = record.timings.get("first_step") or (math.fsum(first) if first else None)
    if speed is not None:
        values["throughput"], values["slow_step"] = speed.samples_per_second, speed.step_seconds_p95
        values["data_wait"], values["peak_memory"] = speed.breakdown.get("data_wait"), speed.peak_memory_bytes
    if learn is not None and learn.evaluations:
        values["accuracy"], values["evaluation_loss"] = learn.evaluations[-1].accuracy, learn.evaluations[-1].loss
    return {
        name: float(value) if value is not None and math.isfinite(value) else None for name, value in values.items()
    }
