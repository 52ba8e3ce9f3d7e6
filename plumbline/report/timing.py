"""Charts of durations: of a round, its platforms, and a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.records import LoadedRecord
from plumbline.report.sentences import clean, number, percent, seconds
from plumbline.schema.verdict import RoundVerdict

STEP_PARTS = ("data_wait", "host_to_device", "forward", "backward", "optimizer", "communication")
_LEAST_LABEL = 9.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Coloured part of a bar.

    `share` is in percent of the whole width.
    """

    name: str
    words: str
    share: float
    kind: int
    labelled: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart."""

    name: str
    words: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bar chart on one scale.

    `kinds` is the legend: the name of each kind of piece.
    """

    title: str
    note: str
    bars: tuple[Bar, ...]
    kinds: Mapping[int, str] = field(default_factory=dict)


def _plain(name: str) -> str:
    return clean(name, 60).replace("_", " ")


def step_bars(records: Mapping[str, LoadedRecord], order: Sequence[str]) -> Bars | None:
    """Return bars of each platform's throughput and step breakdown."""
    speeds = {name: record.record.evidence.speed for name, record in records.items()}
    known = {name: speed for name, speed in speeds.items() if speed and speed.step_seconds}
    if not known:
        return None
    longest = max(speed.step_seconds or 0.0 for speed in known.values())
    kinds = tuple(part for part in STEP_PARTS if any(speed.breakdown.get(part) for speed in known.values()))
    bars = []
    for name in order:
        speed = known.get(name)
        if speed is None:
            continue
        whole = speed.step_seconds or 0.0
        parts = {part: max(0.0, speed.breakdown.get(part, 0.0)) for part in kinds}
        # The means of the parts need not add up to the median step.
        scale = min(1.0, whole / sum(parts.values())) if sum(parts.values()) > 0 else 1.0
        pieces = [
            _piece(part, value, 100 * value * scale / longest, index)
            for index, (part, value) in enumerate(parts.items())
            if value > 0
        ]
        rest = whole - scale * sum(parts.values())
        if rest > 0.005 * whole:
            pieces.append(_piece("other", rest, 100 * rest / longest, len(STEP_PARTS)))
        real = f", {percent(speed.real_mfu, 0)} without padding" if speed.real_mfu else ""
        mfu = f", MFU {percent(speed.mfu, 0)}{real}" if speed.mfu else ""
        text = f"{number(speed.samples_per_second)} samples/s, {seconds(whole)} a step{mfu}"
        bars.append(Bar(name, text, tuple(pieces)))
    legend = dict(sorted({piece.kind: piece.name for bar in bars for piece in bar.pieces}.items()))
    note = (
        "Samples per second: all rows of the measured steps over their wall time. Step: the median; its parts: means."
    )
    return Bars("Throughput, and the parts of a step", note, tuple(bars), legend)


def _piece(name: str, value: float, share: float, kind: int) -> Piece:
    return Piece(_plain(name), seconds(value), round(share, 2), kind, labelled=share >= _LEAST_LABEL)


def round_bars(verdict: RoundVerdict, order: Sequence[str]) -> tuple[Bars, ...]:
    """Return bars of the round's phases, then each platform's."""
    charts = [chart for chart in (_simple("The round", verdict.timings), _machine_bars(verdict, order)) if chart]
    for name in order:
        bars = _simple(clean(name, 63), verdict.platforms[name].timings)
        if bars:
            charts.append(bars)
    return tuple(charts)


def _machine_bars(verdict: RoundVerdict, order: Sequence[str]) -> Bars | None:
    """Return bars of the time for which each platform's machines trained and waited."""
    results = {name: verdict.platforms[name] for name in order}
    times = {
        name: {"trained": result.machine_seconds or 0.0, "waited": result.waited_seconds}
        for name, result in results.items() if result.waited_seconds is not None
    }  # fmt: skip
    if not times:
        return None
    longest = max(sum(parts.values()) for parts in times.values()) or 1.0
    bars = tuple(
        Bar(
            clean(name, 63),
            ", ".join(f"{seconds(value)} {word}" for word, value in parts.items()),
            tuple(_piece(*part, 100 * part[1] / longest, kind) for kind, part in enumerate(parts.items())),
        )
        for name, parts in times.items()
    )
    note = "From the request that started the machines of a platform to the request that stopped them."
    return Bars("Machines that a round starts", note, bars, {0: "trained", 1: "waited"})


def _simple(title: str, timings: Mapping[str, float]) -> Bars | None:
    phases = {name: value for name, value in timings.items() if name != "total" and value >= 0}
    if not phases:
        return None
    longest = max(phases.values()) or 1.0
    total = timings.get("total")
    bars = tuple(
        Bar(
            _plain(name),
            seconds(value),
            (Piece(_plain(name), seconds(value), round(100 * value / longest, 2), 0, labelled=False),),
        )
        for name, value in phases.items()
    )
    return Bars(title, f"{seconds(total)} altogether" if total is not None else "", bars)
