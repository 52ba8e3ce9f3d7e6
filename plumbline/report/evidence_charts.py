"""The charts of losses and of the history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.curves import Change, Curves, curves
from plumbline.report.history import ChangePoint, HistoryPoint
from plumbline.report.words import SYMBOLS, clean

__all__ = ["history_chart", "loss_charts"]

_MAX_POINTS = 240


def loss_charts(
    records: Mapping[str, LoadedRecord], order: Sequence[str], marked: frozenset[str] = frozenset()
) -> tuple[Chart, ...]:
    """Draw the probe's and the learning curve, platform by platform."""
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
    note = "Equal on all platforms, to the last bit: one line hides the others." if same else "As each platform saw it."
    width = max(1, math.ceil(max((len(line) for line in learned.values()), default=0) / _MAX_POINTS))
    means = f"Each point is the mean of {width} steps." if width > 1 else "As each platform saw it."
    found = [
        curves(Curves("Loss of the probe", note, probes, "loss", "step", order, marked=marked)),
        curves(Curves(
            "Loss while learning", means, {name: _thinned(line, width) for name, line in learned.items()}, "loss",
            "step", order, stride=width, marked=marked,
        )),
    ]  # fmt: skip
    return tuple(chart for chart in found if chart is not None)


def _thinned(line: Sequence[float | None], width: int) -> list[float | None]:
    """Return means of `width` steps each; a stretch with a missing number stays missing."""
    pieces = [line[start : start + width] for start in range(0, len(line), width)]
    return [_mean(piece) for piece in pieces]


def _mean(piece: Sequence[float | None]) -> float | None:
    known = [value for value in piece if value is not None]
    return sum(known) / len(known) if known and len(known) == len(piece) else None


def history_chart(
    points: Mapping[str, Sequence[HistoryPoint]], changes: Sequence[ChangePoint], order: Sequence[str],
    marked: frozenset[str] = frozenset(),
) -> Chart | None:  # fmt: skip
    """Draw throughput night by night, with a sign for each night that did not pass, and the change points."""
    rounds = list(dict.fromkeys(point.round for line in points.values() for point in line))
    by_round = {name: {point.round: point for point in line} for name, line in points.items()}
    lines = {
        name: [found[one].samples_per_second if one in found else None for one in rounds]
        for name, found in by_round.items()
    }
    signs = {
        name: [SYMBOLS[found[one].outcome] if one in found and found[one].outcome != "pass" else "" for one in rounds]
        for name, found in by_round.items()
    }
    when = {point.round: point.when for line in points.values() for point in line}
    return curves(
        Curves(
            "Throughput over time", "Samples per second, round by round; ✕ drift, ? inconclusive, ! invalid.",
            lines, "samples / s", "round", order,
            x_names=[when[one] or clean(one, 14) for one in rounds],
            signs=signs,
            changes=[
                Change(rounds.index(change.round), change.platform, clean(change.words, 60))
                for change in changes
                if change.round in rounds
            ],
            marked=marked,
        )
    )  # fmt: skip
