"""What is drawn of the evidence: the taps against their envelope, the losses, the history."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from plumbline.judge.pair import Pair, TapError
from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart, Label, Line, Mark, Scale, Series, Tick, curves, log_axis
from plumbline.report.history import Change, HistoryPoint
from plumbline.report.words import SYMBOLS, clean, number

__all__ = ["history_chart", "loss_charts", "taps_chart"]

_LAYER = re.compile(r"\.layer\.(\d+)(\.|$)")
_SECTION_GAP = 26.0
_MAX_TITLES = 700
_MAX_POINTS = 240
_MAX_NOTES = 3


def taps_chart(pairs: Mapping[str, Pair], order: Sequence[str]) -> Chart | None:
    """The first tapped step: every module's output and every gradient, against what rounding explains.

    `None` where nothing was sketched on both sides, or all of it is equal to the last bit.
    """
    step = min((step for pair in pairs.values() for step in pair.tap_steps), default=None)
    if step is None:
        return None
    found = {name: (*pair.errors(step, "forward"), *pair.errors(step, "gradient")) for name, pair in pairs.items()}
    found = {name: errors for name, errors in found.items() if errors}
    everything = [error for errors in found.values() for error in errors]
    if not everything or all(error.error == 0 for error in everything):
        return None
    longest = max(found.values(), key=len)
    height = 320.0
    frame = Chart("", "", "", height=height)
    known = [error.error for error in everything] + [error.limit for error in everything]
    # A decade more than is needed: the names of the first ones over stand there, over no point.
    axis = log_axis([*known, 10 * max((one for one in known if math.isfinite(one)), default=0.0)], height)
    split = sum(1 for error in longest if error.reference.stage == "forward")
    room = frame.right - frame.left - 12 - _SECTION_GAP

    def x(index: float) -> float:
        gap = _SECTION_GAP if index >= split else 0.0
        return round(frame.left + 6 + gap + (index + 0.5) * room / len(longest), 1)

    marks: list[Mark] = []
    notes: list[Label] = []
    leaders: list[Line] = []
    for name, errors in found.items():
        series = order.index(name)
        few = len(errors) <= _MAX_TITLES
        marks += [
            Mark(
                x(i), axis.at(error.error), series, _title(name, error) if few or error.over else "", strong=error.over
            )
            for i, error in enumerate(errors)
        ]
        first = next((i for i, error in enumerate(errors) if error.over), None)
        if first is not None and len(notes) < _MAX_NOTES:
            notes.append(_first_over(errors[first], x(first), frame.top + 10 + 15 * len(notes), series, frame))
            ends = (notes[-1].y + 4, axis.at(errors[first].error) - 6)
            leaders.append(Line(" ".join(f"{x(first)},{round(y, 1)}" for y in ends), series))
    sections = ((0, split), (split, len(longest)))
    over = {name: sum(error.over for error in errors) for name, errors in found.items()}
    words = "; ".join(f"{name}: {count} of {len(found[name])} over the limit" for name, count in over.items())
    return Chart(
        f"How far each tensor is from the reference, step {step}",
        f"The shaded region is what rounding alone explains. {words}.",
        "relative error", "", height,
        x_ticks=_layers(longest, x, split),
        y_ticks=axis.ticks(
            zero=any(error.error == 0 for error in everything),
            missing=any(not math.isfinite(error.error) for error in everything),
        ),
        lines=tuple(leaders),
        marks=tuple(marks),
        labels=tuple(notes),
        bands=tuple(_band(longest[a:b], a, x, axis.at, frame.bottom) for a, b in sections if b > a),
        rules=tuple(Label(x(i), 0.0, "") for i in ([split] if 0 < split < len(longest) else [])),
        legend=tuple(Series(name, order.index(name)) for name in found),
    )  # fmt: skip


def _title(platform: str, error: TapError) -> str:
    what = "output" if error.reference.stage == "forward" else "gradient"
    name = clean(error.reference.name or "the model", 120)
    return f"{platform}: {what} of {name}: {number(error.error)} (limit {number(error.limit)})"


def _first_over(error: TapError, x: float, y: float, series: int, frame: Chart) -> Label:
    """The first module over its limit, named; its words stay inside the plot."""
    right = x > (frame.left + frame.right) / 2
    text = clean(error.reference.name or "the model", 60)
    return Label(x - 4 if right else x + 4, y, f"first: {text}", "end" if right else "start", series)


def _band(errors: Sequence[TapError], start: int, x: Scale, y: Callable[[float], float], bottom: float) -> str:
    left, right = x(start), x(start + len(errors) - 1)
    tops = [f"{x(start + i)},{y(error.limit)}" for i, error in enumerate(errors)]
    return " ".join([f"{left - 5},{bottom}", f"{left - 5},{tops[0].split(',')[1]}", *tops,
                     f"{right + 5},{tops[-1].split(',')[1]}", f"{right + 5},{bottom}"])  # fmt: skip


def _layers(errors: Sequence[TapError], x: Scale, split: int) -> tuple[Tick, ...]:
    """Where each layer begins, in both sections; every second or fourth in a deep model."""
    starts: list[tuple[int, str]] = []
    for index, error in enumerate(errors):
        found = _LAYER.search(error.reference.name)
        part = f"layer {found.group(1)}" if found else _outside(error.reference.name)
        new_section = index == split
        if part and (new_section or not starts or part not in {label for _, label in starts[-3:]}):
            starts.append((index, part))
    ticks: list[Tick] = []
    last = -math.inf
    for index, label in starts:
        at = x(index)
        if at - last >= 52:
            ticks.append(Tick(at, label))
            last = at
    sections = [Tick(x(0), "outputs ▸", minor=True)] if split else []
    if split < len(errors):
        sections.append(Tick(x(split), "gradients ▸", minor=True))
    return (*ticks, *sections)


def _outside(name: str) -> str:
    for word in ("embeddings", "pooler", "classifier", "cls"):
        if word in name:
            return word
    return ""


def loss_charts(records: Mapping[str, LoadedRecord], order: Sequence[str]) -> tuple[Chart, ...]:
    """The probe's and the learning curve, platform by platform."""
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
        curves("Loss of the probe", note, probes, y_label="loss", x_label="step", order=order),
        curves(
            "Loss while learning", means, {name: _thinned(line, width) for name, line in learned.items()},
            y_label="loss", x_label="step", order=order, stride=width,
        ),
    ]  # fmt: skip
    return tuple(chart for chart in found if chart is not None)


def _thinned(line: Sequence[float | None], width: int) -> list[float | None]:
    """Means of `width` steps each; a stretch with a missing number stays missing."""
    pieces = [line[start : start + width] for start in range(0, len(line), width)]
    return [_mean(piece) for piece in pieces]


def _mean(piece: Sequence[float | None]) -> float | None:
    known = [value for value in piece if value is not None]
    return sum(known) / len(known) if known and len(known) == len(piece) else None


def history_chart(
    points: Mapping[str, Sequence[HistoryPoint]], changes: Sequence[Change], order: Sequence[str]
) -> Chart | None:
    """Throughput night by night, each night's verdict as a sign, and the change points."""
    rounds = list(dict.fromkeys(point.round for line in points.values() for point in line))
    lines = {
        name: [{point.round: point.samples_per_second for point in line}.get(one) for one in rounds]
        for name, line in points.items()
    }
    signs = {
        name: [next((SYMBOLS[p.outcome] for p in line if p.round == one and p.outcome != "pass"), "") for one in rounds]
        for name, line in points.items()
    }
    chart = curves(
        "Throughput over time", "Samples per second, round by round; ✕ drift, ? inconclusive, ! invalid.",
        lines, y_label="samples / s", x_label="round", order=order, signs=signs,
    )  # fmt: skip
    if chart is None:
        return None
    width = (chart.right - chart.left) / (len(rounds) - 1)
    when = {point.round: point.when for line in points.values() for point in line}
    stride = max(1, math.ceil(len(rounds) / 7))

    def x(one: str) -> float:
        return round(chart.left + rounds.index(one) * width, 1)

    rules = [
        Label(x(change.round), chart.top + 10 + 13 * i, clean(change.words, 60))
        for i, change in enumerate(changes)
        if change.round in rounds
    ]
    ticks = [Tick(x(one), when[one] or clean(one, 14)) for one in rounds[::stride]]
    return Chart(
        chart.title, chart.note, chart.y_label, "", chart.height, x_ticks=tuple(ticks), y_ticks=chart.y_ticks,
        lines=chart.lines, marks=chart.marks, labels=chart.labels, rules=tuple(rules), legend=chart.legend,
    )  # fmt: skip
