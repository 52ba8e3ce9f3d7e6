"""Charts of losses and of the throughput's history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.curves import ChangeMark, Curves, curves
from plumbline.report.history import HistoryPoint, MarkedChange
from plumbline.report.words import SYMBOLS, clean

_MAX_POINTS = 240


def loss_charts(
    records: Mapping[str, LoadedRecord], order: Sequence[str], marked: frozenset[str] = frozenset()
) -> tuple[Chart, ...]:
    """Draw each platform's losses, of probe and learn part."""
    probes = {
        name: [step.loss for step in record.record.evidence.probe.steps]
        for name, record in records.items()
        if record.record.evidence.probe
    }
    learned = {
        name: list(record.record.evidence.learn.losses)
        for name, record in records.items()
        if record.record.evidence.learn
    }
    same = len({tuple(line) for line in probes.values()}) == 1 and len(probes) > 1
    note = (
        "Equal on all platforms, to the last bit: one line hides the others."
        if same
        else "As measured on each platform."
    )
    width = max(1, math.ceil(max((len(line) for line in learned.values()), default=0) / _MAX_POINTS))
    means = f"Each point is the mean of {width} steps." if width > 1 else "As measured on each platform."
    charts = [
        curves(Curves("Loss of the probe", note, probes, "loss", "step", order, marked=marked)),
        curves(Curves(
            "Loss while learning", means, {name: _thinned(line, width) for name, line in learned.items()}, "loss",
            "step", order, stride=width, marked=marked,
        )),
    ]  # fmt: skip
    return tuple(chart for chart in charts if chart is not None)


def _thinned(line: Sequence[float | None], width: int) -> list[float | None]:
    """Return means over `width` steps.

    A missing number makes its mean missing.
    """
    pieces = [line[start : start + width] for start in range(0, len(line), width)]
    return [_mean(piece) for piece in pieces]


def _mean(piece: Sequence[float | None]) -> float | None:
    known = [value for value in piece if value is not None]
    return sum(known) / len(known) if known and len(known) == len(piece) else None


def history_chart(
    points: Mapping[str, Sequence[HistoryPoint]], changes: Sequence[MarkedChange], order: Sequence[str],
    marked: frozenset[str] = frozenset(),
) -> Chart | None:  # fmt: skip
    """Draw throughput per round, with failed rounds and changes."""
    rounds = list(dict.fromkeys(point.round for line in points.values() for point in line))
    by_round = {name: {point.round: point for point in line} for name, line in points.items()}
    lines = {
        name: [by_id[round_id].samples_per_second if round_id in by_id else None for round_id in rounds]
        for name, by_id in by_round.items()
    }
    signs = {
        name: [
            SYMBOLS[by_id[round_id].outcome] if round_id in by_id and by_id[round_id].outcome != "pass" else ""
            for round_id in rounds
        ]
        for name, by_id in by_round.items()
    }
    when = {point.round: point.when for line in points.values() for point in line}
    return curves(
        Curves(
            "Throughput over time", "Samples per second, round by round; ✕ drift, ? inconclusive, ! invalid.",
            lines, "samples / s", "round", order,
            x_names=[when[round_id] or clean(round_id, 14) for round_id in rounds],
            signs=signs,
            changes=[
                ChangeMark(rounds.index(change.round), change.platform, clean(change.words, 60))
                for change in changes
                if change.round in rounds
            ],
            marked=marked,
        )
    )  # fmt: skip
