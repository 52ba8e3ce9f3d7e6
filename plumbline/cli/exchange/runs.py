"""Nights as experiment-tracker runs: parameters, metrics, curves, records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plumbline.data.stores import ObjectMissingError, read_bytes
from plumbline.night.central import CentralStore, round_key
from plumbline.schema.escape import one_line
from plumbline.schema.record import RunRecord
from plumbline.schema.series import SeriesFile

Curve = tuple[tuple[int, float], ...]
"""Points (step, value) in the order of steps."""
MOST_POINTS = 1000
"""Maximum number of points of a curve: a record keeps the loss of up to two million steps."""
_MOST_PARAMETERS = 500
_MOST_CHARS = 500

_MAX_REPORT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class NightRun:
    """One training of a night, or only its platform's verdict."""

    suite: str
    platform: str
    round: str
    place: int
    """Number of the night in its series, from 0."""
    time: float
    """In seconds since 1970."""
    workload: str = ""
    record: str = ""
    verdict: str = ""
    causes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    stack: Mapping[str, str] = field(default_factory=dict)
    """Hardware, and digests of spec, lock and software."""

    @property
    def key(self) -> str:
        """Return the run's identity, so that a repeated export replaces it."""
        return self.record or f"{self.round}/{self.platform}"


def _last_rounds(series: SeriesFile, last: int | None) -> set[str]:
    """Return a platform's last `number` rounds, or all."""
    times = {name: judged.time for name, judged in series.judged.items()}
    times |= dict(zip(series.round, series.time, strict=True))
    return set(sorted(times, key=lambda name: times[name])[-last:] if last else times)


def night_runs(series: SeriesFile, last: int | None = None) -> tuple[NightRun, ...]:
    """Return the last rounds' runs by time, runs without records last."""
    kept, recorded = _last_rounds(series, last), set(series.round)
    verdicts: dict[str, tuple[str, tuple[str, ...]]] = {
        name: (judged.verdict, judged.causes) for name, judged in series.judged.items()
    }
    rows = [(place, series.row(place)) for place, name in enumerate(series.round) if name in kept]
    runs = [
        NightRun(
            series.suite, series.platform, row.round, place, row.time.timestamp(), row.workload, row.record,
            *verdicts.get(row.round, ("", ())),
            metrics={name: value for name, value in row.metrics.items() if value is not None},
            stack={"hardware": row.hardware, "spec": row.spec, "lock": row.lock, "software": row.software},
        )
        for place, row in rows
    ]  # fmt: skip
    runs += [
        NightRun(
            series.suite, series.platform, name, len(series), judged.time, verdict=judged.verdict, causes=judged.causes
        )
        for name, judged in series.judged.items()
        if name in kept and name not in recorded
    ]  # fmt: skip
    return tuple(runs)


def parameters_of(record: RunRecord) -> dict[str, str]:
    """Return the training's spec and effective settings, by dotted keys."""
    spec = record.spec.to_json()
    spec["data"].pop("class_names", None)  # ten thousand of them
    found = {"platform": record.platform, **dict(_flat(spec))}
    packages = record.fingerprint.packages
    found |= {f"packages.{name}": packages[name] for name in ("torch", "transformers", "numpy") if name in packages}
    found["python"] = record.fingerprint.python
    return dict([(name, one_line(value)[:_MOST_CHARS]) for name, value in found.items()][:_MOST_PARAMETERS])


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    elif value is not None:
        yield prefix, str(value)


def curves_of(record: RunRecord) -> dict[str, Curve]:
    """Return a training's curves by name, omitting missing values."""
    curves: dict[str, Iterable[tuple[int, float | None]]] = {}
    if probe := record.evidence.probe:
        curves["probe/loss"] = list(enumerate(probe.losses))
        curves["probe/gradient_norm"] = list(enumerate(probe.gradient_norms))
    if learn := record.evidence.learn:
        curves["learn/loss"] = enumerate(learn.losses)
        rates = (rate if isinstance(rate, float) else max(rate) for rate in learn.learning_rates)
        curves["learn/learning_rate"] = enumerate(rates)
        curves["learn/evaluation_loss"] = [(found.step, found.loss) for found in learn.evaluations]
        curves["learn/accuracy"] = [(found.step, found.accuracy) for found in learn.evaluations]
    known = {name: [(step, value) for step, value in points if value is not None] for name, points in curves.items()}
    return {name: _thinned(points) for name, points in known.items() if points}


def _thinned(points: Sequence[tuple[int, float]]) -> Curve:
    """Return at most `MOST_POINTS` evenly spaced points, including first and last."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    gap = (len(points) - 1) / (MOST_POINTS - 1)
    return tuple(points[round(index * gap)] for index in range(MOST_POINTS))


def stored_report(central: CentralStore, run: NightRun) -> str:
    """Return the report page of the run's round, or "" if deleted."""
    try:
        key = round_key(run.suite, run.round, "report.html")
        return read_bytes(central.store, key, max_bytes=_MAX_REPORT_BYTES).decode()
    except ObjectMissingError:
        return ""
