"""Line charts over steps or rounds. Pure.

One chart, or small multiples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from plumbline.report.charts import (
    CONTEXT,
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
    Rule,
    Scale,
    Series,
    Tick,
    end_anchor,
    nice,
    room_for,
    shortened,
)
from plumbline.report.sentences import number

_LABEL_GAP = 15.0
_MOST_RULES = 3
_LONGEST_END = 190.0
_BOLD = 1.15
"""Width of bold text, as a share of plain text of the same size."""


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """Marked level change: its index and its series."""

    index: int
    series: str
    words: str
    is_named: bool = True
    """Whether its label names the series; not in the series' own panel."""


@dataclass(frozen=True)
class Curves:
    """Content of a line chart.

    It has lines by name, signs, and changes of level.
    """

    title: str
    note: str
    lines: Mapping[str, Sequence[float | None]]
    y_label: str
    x_label: str
    order: Sequence[str]
    """All platforms in order, the reference first: the place in it picks colour, dash and shape."""
    stride: int = 1
    """The number of steps from point to point."""
    x_names: Sequence[str] = ()
    """Labels of the points on the x axis, instead of numbers."""
    signs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Signs above points, or on the axis where the point is missing."""
    changes: Sequence[ChangeMark] = ()
    marked: frozenset[str] = frozenset()
    """Platforms that did not pass: their panels come first."""

    @property
    def length(self) -> int:
        """Return the length of the longest line."""
        return max((len(line) for line in self.lines.values()), default=0)

    def only(self, *names: str) -> Curves:
        """Return a copy restricted to these lines."""
        return replace(
            self,
            lines={name: self.lines[name] for name in names if name in self.lines},
            signs={name: self.signs[name] for name in names if name in self.signs},
            changes=[change for change in self.changes if change.series in names],
        )


def curves(content: Curves) -> Chart | None:
    """Draw lines on a linear scale, with gaps for missing values.

    `None` without any line.
    """
    known = [value for line in content.lines.values() for value in line if _is_known(value)]
    if not known or content.length < 2:
        return None
    bounds = (min(value for value in known if value is not None), max(value for value in known if value is not None))
    index = content.order.index
    if len(content.lines) <= MOST_TOGETHER:
        chart = _drawn(content, WIDE, bounds, index)
        return replace(chart, narrow=_drawn(content, NARROW, bounds, index))
    panels = tuple(_panels(content, bounds))
    note = f"{content.note} One panel for each platform; grey: {content.order[0]}, the reference."
    return Chart(content.title, note, content.y_label, content.x_label, panels=panels)


def _panels(content: Curves, bounds: tuple[float, float]) -> Iterator[Chart]:
    """Yield one panel per platform, except the reference.

    Failed platforms come first.
    """
    reference = content.order[0]
    names = sorted(
        (name for name in content.lines if name != reference),
        key=lambda name: (name not in content.marked, content.order.index(name)),
    )
    for name in names:
        is_marked = name in content.marked
        series = {reference: CONTEXT, name: MARKED if is_marked else 0}
        own = content.only(reference, name)
        changes = [replace(change, is_named=change.series != name) for change in own.changes]
        drawn = _drawn(replace(own, changes=changes, y_label="", x_label=""), PANEL, bounds, series.__getitem__)
        last = next((value for value in reversed(content.lines[name]) if _is_known(value)), None)
        note = f"last {number(last)} {content.y_label}" if last is not None else "no number"
        yield replace(drawn, title=name, note=note, legend=(), is_marked=is_marked)


def _drawn(content: Curves, size: ChartSize, bounds: tuple[float, float], series: Callable[[str], int]) -> Chart:
    low, high, step = nice(*bounds, pieces=4 if size.height > PANEL.height else 3)
    values = [low + i * step for i in range(round((high - low) / step) + 1)]
    y_words = [number(round(value, 12)) for value in values]
    ends = {name: last for name, line in content.lines.items() if (last := _last(line)) is not None}
    margins = replace(size.margins, left=max(size.margins.left, room_for(y_words) + 12))
    if size.names_ends:
        longest = room_for([f"{name} {number(value)}" for name, (_, value) in ends.items()])
        margins = replace(margins, right=min(_BOLD * longest, _LONGEST_END) + 18)
    frame = Chart(
        content.title, content.note, content.y_label, content.x_label, size.height, size.width, margins
    )  # fmt: skip

    def x(index: float) -> float:
        return round(frame.left + index * (frame.right - frame.left) / (content.length - 1), 1)

    def y(value: float) -> float:
        return round(frame.bottom - (value - low) / (high - low) * (frame.bottom - frame.top), 1)

    marks = [
        ChartMark(x(index), y(value), series(name), f"{name}: {number(value)}") for name, (index, value) in ends.items()
    ]
    # The reference is drawn behind the other lines.
    drawn = sorted(content.lines, key=lambda name: series(name) != CONTEXT)
    return replace(
        frame,
        x_ticks=tuple(_x_ticks(content, size, x, frame.width)),
        y_ticks=tuple(Tick(y(value), label) for value, label in zip(values, y_words, strict=True)),
        lines=tuple(line for name in drawn for line in _pieces(content, name, x, y, series(name))),
        marks=tuple(marks),
        labels=(
            *(_end_labels({name: (y(value), value) for name, (_, value) in ends.items()}, frame, series)
              if size.names_ends else ()),
            *_signs(content, frame, x, y, series),
        ),
        rules=tuple(_rules(content, frame, x)),
        legend=tuple(Series(name, series(name)) for name in content.lines),
    )  # fmt: skip


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _last(line: Sequence[float | None]) -> tuple[int, float] | None:
    """Return index and value of the last finite point."""
    known = [(index, value) for index, value in enumerate(line) if value is not None and math.isfinite(value)]
    return known[-1] if known else None


def _pieces(content: Curves, name: str, x: Scale, y: Scale, series: int) -> Iterator[Line]:
    """Yield the lines between missing values, with the number of each point."""
    for _, piece in groupby(enumerate(content.lines[name]), key=lambda point: _is_known(point[1])):
        known = [(index, value) for index, value in piece if value is not None and math.isfinite(value)]
        if len(known) > 1:
            words = (f"{name}, {_x_name(content, index)}: {number(value)}" for index, value in known)
            yield Line(" ".join(f"{x(index)},{y(value)}" for index, value in known), series, "|".join(words))


def _x_name(content: Curves, index: int) -> str:
    return content.x_names[index] if content.x_names else f"{content.x_label or 'step'} {index * content.stride:,}"


def _signs(content: Curves, frame: Chart, x: Scale, y: Scale, series: Callable[[str], int]) -> Iterator[ChartLabel]:
    for name, line in content.signs.items():
        for index, sign in enumerate(line):
            if sign:
                at = content.lines[name][index]
                height = frame.bottom - 5 if at is None or not math.isfinite(at) else max(y(at) - 8, frame.top + 4)
                yield ChartLabel(x(index), round(height, 1), sign, "middle", series(name))


def _rules(content: Curves, frame: Chart, x: Scale) -> Iterator[Rule]:
    """Yield a vertical rule per level change; only the first have labels."""
    middle = (frame.left + frame.right) / 2
    for place, change in enumerate(content.changes):
        at = x(change.index)
        is_left = at > middle
        room = at - frame.left if is_left else frame.right - at
        text = _change_text(change, room - 8) if place < _MOST_RULES else ""
        yield Rule(at, frame.top + 10 + 13 * place, text, "end" if is_left else "start")


def _change_text(change: ChangeMark, room: float) -> str:
    """Return the label of a level change.

    Its name is shortened if necessary, its numbers never.
    """
    if room_for([change.words]) > room:
        return ""
    rest = room - room_for([f": {change.words}"])
    return f"{shortened(change.series, rest, least=3)}: {change.words}" if change.is_named else change.words


def _x_ticks(content: Curves, size: ChartSize, x: Scale, width: float) -> Iterator[Tick]:
    if content.x_names:
        stride = max(1, math.ceil(len(content.x_names) / size.num_ticks))
        places = [(float(index), content.x_names[index]) for index in range(0, len(content.x_names), stride)]
    else:
        last = (content.length - 1) * content.stride
        places = [(step / content.stride, f"{step:,}") for step in _steps(last, size.num_ticks)]
    for index, label in places:
        yield Tick(x(index), label, anchor=end_anchor(x(index), label, width))


def _end_labels(
    ends: Mapping[str, tuple[float, float]], frame: Chart, series: Callable[[str], int]
) -> tuple[ChartLabel, ...]:
    """Return line-end labels, moved apart to avoid overlap.

    Names are moved apart, inside the plot's height.
    """
    placed = sorted(ends.items(), key=lambda end: (end[1][0], series(end[0])))
    heights: list[float] = []
    floor = frame.top
    for _, (height, _) in placed:
        heights.append(max(height, floor))
        floor = heights[-1] + _LABEL_GAP
    ceiling = frame.bottom
    for place in range(len(heights) - 1, -1, -1):
        heights[place] = min(heights[place], ceiling)
        ceiling = heights[place] - _LABEL_GAP
    labels = []
    for (name, (_, value)), height in zip(placed, heights, strict=True):
        value_text = number(value)
        text = f"{shortened(name, frame.margins.right - 18 - room_for([f' {value_text}']))} {value_text}"
        labels.append(ChartLabel(frame.right + 10, round(height + 4, 1), text, series=series(name)))
    return tuple(labels)


def _steps(last: int, count: int) -> range:
    """Return about `count` round step numbers from 0 to `last`."""
    raw = max(1, last) / count
    magnitude = 10 ** math.floor(math.log10(raw)) if raw >= 1 else 1
    return range(0, last + 1, next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw))
