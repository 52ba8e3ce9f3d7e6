"""Nightly metrics: source in the record, direction, scale; rows of a series file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np

from plumbline.judge.statistics.samples import HUGE, Values
from plumbline.schema import limits
from plumbline.schema.digest import digest_json
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import RunRecord, night_time
from plumbline.schema.series import WORD_COLUMNS, CallEntry, JudgedRound, NightRow, SeriesFile

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
_MOST_JUDGED = 400
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


def software_key(fingerprint: Fingerprint) -> str:
    """Return a digest of the software; equal digests exclude a software cause."""
    fields = ("os", "python", "plumbline", "driver", "cuda", "cudnn", "nccl", "packages", "numerics", "container_image")
    return digest_json({name: getattr(fingerprint, name) for name in fields})[:16]


def row_of(record: RunRecord, now: datetime | None = None) -> NightRow | None:
    """Convert a record to a series row; `None` for experiments and incomplete trainings."""
    whole = all(getattr(record.evidence, part) is not None for part in record.spec.parts)
    if record.experiment is not None or record.exit.status != "completed" or not whole:
        return None
    return NightRow(
        record=record.record_id,
        round=record.round_id,
        time=night_time(record.round_id, record.started_at, now),
        workload=record.spec.workload,
        spec=record.spec_sha256[:16],
        lock=record.fingerprint.lock_sha256[:16],
        hardware=record.fingerprint.hardware_class,
        software=software_key(record.fingerprint),
        metrics=read_metrics(record),
    )


def extended(
    series: SeriesFile,
    rows: Iterable[NightRow],
    calls: Sequence[CallEntry] = (),
    judged: Mapping[str, JudgedRound] = {},
) -> SeriesFile:
    """Return the series with the new rows added, sorted by time."""
    known, held = set(series.record), {(call.record, call.metric) for call in series.calls}
    new = [row for row in {row.record: row for row in rows}.values() if row.record not in known]
    every = (*series.calls, *(call for call in calls if (call.record, call.metric) not in held))
    # A round that a person retried counts by its last verdict; the same verdict again keeps the first one's time.
    later = {name: result for name, result in judged.items() if not _is_same(series.judged.get(name), result)}
    verdicts = dict(sorted({**series.judged, **later}.items(), key=lambda item: item[1].time)[-_MOST_JUDGED:])
    if not new:
        is_same = len(every) == len(series.calls) and verdicts == series.judged
        return series if is_same else series.model_copy(update={"calls": every, "judged": verdicts})
    words = {word: place for place, word in enumerate(series.words)}
    added = {"time": [row.time.timestamp() for row in new]}
    added |= {name: [getattr(row, name) for row in new] for name in ("record", "round")}
    added |= {name: [words.setdefault(getattr(row, name), len(words)) for row in new] for name in WORD_COLUMNS}
    columns = {name: [*getattr(series, name), *values] for name, values in added.items()}
    order = sorted(range(len(columns["time"])), key=lambda place: (columns["time"][place], columns["record"][place]))
    metrics = {
        name: [*series.metrics.get(name, [None] * len(series)), *(_shorter(row.metrics.get(name)) for row in new)]
        for name in dict.fromkeys([*series.metrics, *(name for row in new for name in row.metrics)])
    }

    def ordered(table: Mapping[str, Sequence[object]]) -> dict[str, tuple[object, ...]]:
        return {name: tuple(column[place] for place in order) for name, column in table.items()}

    whole = {"suite": series.suite, "platform": series.platform, "words": tuple(words), "judged": verdicts}
    return SeriesFile.model_validate({**whole, "calls": every, "metrics": ordered(metrics), **ordered(columns)})


def _is_same(old: JudgedRound | None, new: JudgedRound) -> bool:
    return old is not None and new.replace(time=old.time) == old


def _shorter(value: float | None) -> float | None:
    """Round to nine significant digits, ample for noisy measurements."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.9g}")
