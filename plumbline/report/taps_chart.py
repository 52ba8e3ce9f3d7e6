"""Chart of all tensor errors at one step. Pure.

It compares the first tapped step with the effect of rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from plumbline.judge.pair import Pair, TapError
from plumbline.report.charts import (
    MARKED,
    MOST_TOGETHER,
    NARROW,
    PANEL,
    WIDE,
    Chart,
    ChartLabel,
    ChartMark,
    ChartSize,
    Line,
    LogAxis,
    Rule,
    Series,
    Tick,
    log_axis,
    room_for,
    shortened,
)
from plumbline.report.sentences import clean, number

_LAYER = re.compile(r"\.(?:layer|layers)\.(\d+)(\.|$)")
_SECTION_GAP = 26.0
_MAX_TITLES = 700
_MAX_NOTES = 3
_TALL, _TALL_PANEL = 320.0, 210.0
_TICK_GAP = 8.0

_Errors = Sequence[TapError]


@dataclass(frozen=True, slots=True)
class _Plot:
    """Drawing area with the positions of tensors and errors."""

    frame: Chart
    axis: LogAxis
    count: int
    split: int

    def x(self, index: float) -> float:
        """Return the x position of the tensor at `index`.

        Gradients follow a gap.
        """
        room = self.frame.right - self.frame.left - 12 - _SECTION_GAP
        gap = _SECTION_GAP if index >= self.split else 0.0
        return round(self.frame.left + 6 + gap + (index + 0.5) * room / self.count, 1)


def taps_chart(pairs: Mapping[str, Pair], order: Sequence[str], marked: frozenset[str]) -> Chart | None:
    """Draw the errors of all outputs and gradients at one step.

    It is the first tapped step. Only tensors of the platforms `marked` have limits.
    Return `None` if no tensor was sketched on both sides, or if all are bitwise equal.
    """
    step = min((step for pair in pairs.values() for step in pair.tap_steps), default=None)
    if step is None:
        return None
    errors_of = {name: (*pair.errors(step, "forward"), *pair.errors(step, "gradient")) for name, pair in pairs.items()}
    errors_of = {
        name: errors if name in marked else tuple(replace(error, limit=math.inf) for error in errors)
        for name, errors in errors_of.items()
        if errors
    }
    everything = [error for errors in errors_of.values() for error in errors]
    if not everything or all(error.error == 0 for error in everything):
        return None
    over = {name: sum(error.over for error in errors) for name, errors in errors_of.items()}
    counts = {
        name: f"{count} of {len(errors_of[name])} over the limit"
        if name in marked
        else ("other kernels" if any(error.error for error in errors_of[name]) else "equal bits")
        for name, count in over.items()
    }
    title = f"How far each tensor is from the reference, step {step}"
    note = "The shaded region shows what rounding alone explains." if marked & errors_of.keys() else ""
    if len(errors_of) >= MOST_TOGETHER:  # the reference has a colour too
        names = sorted(errors_of, key=lambda name: (-over[name], order.index(name)))
        panels = [_panel(name, errors_of[name], everything, counts[name]) for name in names]
        return Chart(title, f"{note} One panel for each platform.".strip(), "relative error", panels=tuple(panels))
    said = "; ".join(f"{name}: {count}" for name, count in counts.items())
    charts = [
        replace(
            _drawn(errors_of, everything, _tall(size, _TALL), order.index), title=title, note=f"{note} {said}.".strip(),
            y_label="relative error",
        )
        for size in (WIDE, NARROW)
    ]  # fmt: skip
    return replace(charts[0], narrow=charts[1])


def _panel(name: str, errors: _Errors, everything: _Errors, note: str) -> Chart:
    is_marked = any(error.over for error in errors)
    drawn = _drawn({name: errors}, everything, _tall(PANEL, _TALL_PANEL), lambda _: MARKED if is_marked else 0)
    return replace(drawn, title=name, note=note, legend=(), is_marked=is_marked)


def _tall(size: ChartSize, height: float) -> ChartSize:
    """Return the chart size for this height, with label margins.

    The labels name layers and sections.
    """
    return replace(size, height=height, margins=replace(size.margins, right=min(size.margins.right, 24.0), bottom=40.0))


def _drawn(
    errors_of: Mapping[str, _Errors], everything: _Errors, size: ChartSize, series: Callable[[str], int]
) -> Chart:
    longest = max(errors_of.values(), key=lambda errors: (len(errors), _has_limits(errors)))
    frame = Chart("", "", height=size.height, width=size.width, margins=size.margins)
    known = [error.error for error in everything] + [error.limit for error in everything]
    # One decade of extra room: the names of the first modules over the limit are drawn there.
    most = 10 * max((value for value in known if math.isfinite(value)), default=0.0)
    axis = log_axis([*known, most], frame.top, frame.bottom)
    split = sum(1 for error in longest if error.reference.stage == "forward")
    plot = _Plot(frame, axis, len(longest), split)
    notes, leaders = _first_ones(errors_of, plot, series)
    below = frame.top + 15 * len(notes)
    sections = ((0, split), (split, len(longest)))
    return replace(
        frame,
        x_ticks=_layers(longest, plot),
        y_ticks=axis.ticks(
            zero=any(error.error == 0 for error in everything),
            missing=any(not math.isfinite(error.error) for error in everything),
        ),
        lines=tuple(leaders),
        marks=tuple(_marks(errors_of, plot, series)),
        labels=tuple(notes),
        bands=tuple(_band(longest[a:b], a, plot) for a, b in sections if b > a and _has_limits(longest)),
        rules=tuple(Rule(plot.x(i), start=below) for i in ([split] if 0 < split < len(longest) else [])),
        legend=tuple(Series(name, series(name)) for name in errors_of),
    )


def _marks(errors_of: Mapping[str, _Errors], plot: _Plot, series: Callable[[str], int]) -> Iterator[ChartMark]:
    for name, errors in errors_of.items():
        has_titles = len(errors) <= _MAX_TITLES and plot.frame.width == WIDE.width
        for i, error in enumerate(errors):
            title = _title(name, error) if has_titles or error.over else ""
            yield ChartMark(plot.x(i), plot.axis.at(error.error), series(name), title, strong=error.over)


def _title(platform: str, error: TapError) -> str:
    text = "output" if error.reference.stage == "forward" else "gradient"
    name = clean(error.reference.name or "the model", 120)
    limit = f" (limit {number(error.limit)})" if math.isfinite(error.limit) else ""
    return f"{platform}: {text} of {name}: {number(error.error)}{limit}"


def _first_ones(
    errors_of: Mapping[str, _Errors], plot: _Plot, series: Callable[[str], int]
) -> tuple[list[ChartLabel], list[Line]]:
    """Return labels of the first modules beyond their limits.

    Leader lines come with them.
    """
    notes: list[ChartLabel] = []
    leaders: list[Line] = []
    frame = plot.frame
    for name, errors in errors_of.items():
        first = next((i for i, error in enumerate(errors) if error.over), None)
        if first is None or len(notes) == _MAX_NOTES:
            continue
        x, y = plot.x(first), frame.top + 10 + 15 * len(notes)
        is_right = x > (frame.left + frame.right) / 2
        room = (x - frame.left if is_right else frame.right - x) - 8
        module = clean(errors[first].reference.name or "the model", 60)
        text = f"first: {shortened(module, room - 7 * 7)}"
        notes.append(ChartLabel(x - 4 if is_right else x + 4, y, text, "end" if is_right else "start", series(name)))
        ends = (y + 4, plot.axis.at(errors[first].error) - 6)
        leaders.append(Line(" ".join(f"{x},{round(end, 1)}" for end in ends), series(name)))
    return notes, leaders


def _has_limits(errors: _Errors) -> bool:
    return any(math.isfinite(error.limit) for error in errors)


def _band(errors: _Errors, start: int, plot: _Plot) -> str:
    left, right, bottom = plot.x(start), plot.x(start + len(errors) - 1), plot.frame.bottom
    tops = [f"{plot.x(start + i)},{plot.axis.at(error.limit)}" for i, error in enumerate(errors)]
    return " ".join([f"{left - 5},{bottom}", f"{left - 5},{tops[0].split(',')[1]}", *tops,
                     f"{right + 5},{tops[-1].split(',')[1]}", f"{right + 5},{bottom}"])  # fmt: skip


def _layers(errors: _Errors, plot: _Plot) -> tuple[Tick, ...]:
    """Return axis ticks at layer starts, as many as fit."""
    starts: list[tuple[int, str]] = []
    for index, error in enumerate(errors):
        match = _LAYER.search(error.reference.name)
        part = f"layer {match.group(1)}" if match else _outside(error.reference.name)
        new_section = index == plot.split
        if part and (new_section or not starts or part not in {label for _, label in starts[-3:]}):
            starts.append((index, part))
    ticks: list[Tick] = []
    free = -math.inf
    for index, label in starts:
        at = plot.x(index)
        half = room_for([label]) / 2
        if at - half >= free and at < plot.frame.right - 12:
            ticks.append(Tick(at, label))
            free = at + half + _TICK_GAP
    sections = [Tick(plot.x(0), "outputs ▸", minor=True)] if plot.split else []
    if plot.split < len(errors):
        sections.append(Tick(plot.x(plot.split), "gradients ▸", minor=True))
    return (*ticks, *sections)


def _outside(name: str) -> str:
    for word in ("embeddings", "pooler", "classifier", "cls"):
        if word in name:
            return word
    return ""
