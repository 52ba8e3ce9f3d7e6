"""Metrics of a night: source, direction and scale."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.reference import HUGE
from plumbline.schema import limits
from plumbline.schema.evidence import LearnEvidence, SpeedEvidence
from plumbline.schema.record import RunRecord

Worse = Literal["lower", "higher"]

_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per night."""

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

    def scores(self, values: Sequence[float | None]) -> NDArray[np.float64]:
        """Return values as scores, of which higher is worse.

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
        """Return the value of a score."""
        plain = -score if self.worse == "lower" else score
        return math.exp(plain) if self.scale == "relative" else plain * self.typical + 0.0

    def change(self, score: float) -> float:
        """Return a difference of scores for display.

        It is relative, or absolute where the metric is. Negative is lower.
        """
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
_BY_NAME = {metric.name: metric for metric in METRICS}


def metric_of(name: str) -> Metric:
    """Return the metric of this name.

    An unknown metric has a relative scale, and the direction of its name, by default that of a rate.
    """
    return _BY_NAME.get(name) or Metric(name, "", worse_by_name(name) or "lower")


_COSTS = frozenset({
    "s", "sec", "secs", "second", "seconds", "ms", "msec", "msecs", "us", "ns", "millis", "milliseconds",
    "microseconds", "nanoseconds", "minutes", "hours", "latency", "time", "walltime", "runtime", "duration",
    "elapsed", "delay", "wait", "stall", "loss", "nll", "perplexity", "ppl", "error", "errors", "mse", "rmse",
    "mae", "wer", "cer", "failures", "retries", "cost", "overhead",
})  # fmt: skip
_SIZES = frozenset({"memory", "mem", "peakmem", "rss", "vram", "bytes", "kb", "mb", "mib", "gb", "gib"})
_RATES = frozenset({
    "bandwidth", "bps", "mbps", "gbps", "fps", "qps", "tps", "mfu", "throughput", "speed", "accuracy", "acc", "f1",
    "auc", "bleu", "rouge", "precision", "recall",
})  # fmt: skip
_TIMES = frozenset({"s", "sec", "second", "min", "minute", "hour"})
_RATIO = re.compile(r"/(?=(?:s|sec|second|min|minute|hour|step|iter|it|sample|token|batch|epoch)s?\)?$)")
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")


def worse_by_name(name: str) -> Worse | None:
    """Return the direction that a metric's name states; `None` if none.

    Times, losses, errors and sizes are costs: a higher value is worse. Of a ratio the numerator decides, as samples
    per second are no time. A size per time is a rate. A slash before anything but a unit separates folders
    (`train/loss`).
    """
    own_name = _RATIO.sub(" per ", name).rsplit("/", maxsplit=1)[-1]
    words = [word.lower() for word in _WORDS.findall(own_name)]
    place = words.index("per") if "per" in words else len(words)
    numerator = set(words[:place])
    costs = _COSTS if _TIMES.intersection(words[place + 1 : place + 2]) else _COSTS | _SIZES
    is_cost, is_rate = bool(numerator & costs), bool(numerator & _RATES)
    if is_cost != is_rate:
        return "higher" if is_cost else "lower"
    return "lower" if "per" in words and not is_cost else None


def read_metrics(record: RunRecord) -> dict[str, float | None]:
    """Return every metric of a record; `None` if not measured."""
    values: dict[str, float | None] = {metric.name: None for metric in METRICS}
    values |= _speed(record.evidence.speed) | _learn(record.evidence.learn)
    first = [record.timings[name] for name in ("import", "stage", "build") if name in record.timings]
    values["first_step"] = record.timings.get("first_step") or (math.fsum(first) if first else None)
    return {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}


def _speed(speed: SpeedEvidence | None) -> dict[str, float | None]:
    if speed is None:
        return {}
    return {
        "throughput": speed.samples_per_second,
        "slow_step": speed.step_seconds_p95,
        "data_wait": speed.breakdown.get("data_wait"),
        "peak_memory": None if speed.peak_memory_bytes is None else float(speed.peak_memory_bytes),
    }


def _learn(learn: LearnEvidence | None) -> dict[str, float | None]:
    if learn is None or not learn.evaluations:
        return {}
    return {"accuracy": learn.evaluations[-1].accuracy, "evaluation_loss": learn.evaluations[-1].loss}


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """Change of a phase's duration, in seconds per step.

    Positive is longer.
    """

    phase: str
    seconds: float


def phase_changes(before: SpeedEvidence, after: SpeedEvidence) -> tuple[PhaseChange, ...]:
    """Return the phases that changed, the largest growth first.

    Empty if either side has no breakdown.
    """
    names = [name for name in _PHASES if name in before.breakdown and name in after.breakdown]
    step = sum(before.breakdown[name] for name in names)
    changes = [PhaseChange(name, after.breakdown[name] - before.breakdown[name]) for name in names]
    kept = [change for change in changes if abs(change.seconds) > limits.LEAST_CHANGE * step]
    return tuple(sorted(kept, key=lambda change: -change.seconds))


def shift_note(before: SpeedEvidence, after: SpeedEvidence) -> str:
    """Describe the phases that changed, and the change in total.

    Empty if none changed.
    """
    changes = phase_changes(before, after)
    if not changes:
        return ""
    total = sum(after.breakdown.get(name, 0.0) - before.breakdown.get(name, 0.0) for name in _PHASES)
    parts = [f"{change.phase} {_milliseconds(change.seconds)}" for change in changes]
    return f"a step against the accepted record: {', '.join(parts)}, all phases {_milliseconds(total)}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1e3, 3) + 0.0:+.3g} ms"
