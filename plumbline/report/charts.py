"""The geometry of the report's charts: pure numbers, drawn by the template. Series differ by shape, dash and colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.report.words import number

__all__ = ["Chart", "Label", "Line", "LogAxis", "Mark", "Scale", "Series", "Tick", "curves", "log_axis"]

Scale = Callable[[float], float]
"""From an index to where it is drawn."""

WIDTH = 960.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 76.0, 150.0, 24.0, 40.0
_LABEL_GAP = 15.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A position on an axis and its words."""

    at: float
    label: str
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """One point; `series` picks its shape and colour."""

    x: float
    y: float
    series: int
    title: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A polyline as SVG writes its points."""

    points: str
    series: int


@dataclass(frozen=True, slots=True)
class Label:
    """Words in the plot."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    series: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """A name in the legend."""

    name: str
    index: int


@dataclass(frozen=True)
class Chart:
    """One chart, ready to be drawn."""

    title: str
    note: str
    y_label: str
    x_label: str = ""
    height: float = 260.0
    width: float = WIDTH
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    lines: tuple[Line, ...] = ()
    marks: tuple[Mark, ...] = ()
    labels: tuple[Label, ...] = ()
    rules: tuple[Label, ...] = ()
    """Vertical lines at `x` with words at `y`."""
    bands: tuple[str, ...] = ()
    """Polygons: the region that is allowed."""
    legend: tuple[Series, ...] = field(default=())

    @property
    def left(self) -> float:
        """Where the plot begins."""
        return _LEFT

    @property
    def right(self) -> float:
        """Where the plot ends."""
        return self.width - _RIGHT

    @property
    def top(self) -> float:
        """The plot's upper edge."""
        return _TOP

    @property
    def bottom(self) -> float:
        """The plot's lower edge."""
        return self.height - _BOTTOM


@dataclass(frozen=True, slots=True)
class LogAxis:
    """Powers of ten between the plot's edges, with a row below for zero and one above for what is not finite."""

    low: int
    high: int
    top: float
    bottom: float

    def at(self, value: float | None) -> float:
        """Where a value is drawn."""
        if value is None or not math.isfinite(value):
            return self.top
        if value <= 0:
            return self.bottom
        share = (math.log10(value) - self.low) / (self.high - self.low)
        room = 18.0
        position = self.bottom - room - share * (self.bottom - self.top - 2 * room)
        return round(min(max(position, self.top + 6), self.bottom - 6), 1)

    def ticks(self, *, zero: bool, missing: bool) -> tuple[Tick, ...]:
        """One for each power of ten, at most eight, and the two rows where they are used."""
        stride = max(1, math.ceil((self.high - self.low) / 7))
        found = [Tick(self.at(10.0**power), f"1e{power}") for power in range(self.low, self.high + 1, stride)]
        if zero:
            found.append(Tick(self.bottom, "equal"))
        if missing:
            found.append(Tick(self.top, "not finite"))
        return tuple(found)


def log_axis(values: Sequence[float | None], height: float) -> LogAxis:
    """An axis that holds all positive values."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    low = math.floor(math.log10(min(known))) if known else -8
    high = math.ceil(math.log10(max(known))) if known else -4
    return LogAxis(low, max(high, low + 1), _TOP, height - _BOTTOM)


def curves(
    title: str,
    note: str,
    lines: Mapping[str, Sequence[float | None]],
    *,
    y_label: str,
    x_label: str,
    order: Sequence[str],
    stride: int = 1,
    signs: Mapping[str, Sequence[str]] | None = None,
) -> Chart | None:
    """Lines over steps on a linear scale; a missing number leaves a gap, and names stand at the ends of the lines.

    `stride` is the number of steps from point to point; `signs` stand above their points, or on the axis.
    """
    known = [value for line in lines.values() for value in line if value is not None and math.isfinite(value)]
    longest = max((len(line) for line in lines.values()), default=0)
    if not known or longest < 2:
        return None
    frame = Chart(title, note, y_label, x_label)
    low, high, step = _nice(min(known), max(known))

    def x(index: float) -> float:
        return round(frame.left + index * (frame.right - frame.left) / (longest - 1), 1)

    def y(value: float) -> float:
        return round(frame.bottom - (value - low) / (high - low) * (frame.bottom - frame.top), 1)

    drawn = [Line(points, order.index(name)) for name, line in lines.items() for points in _pieces(line, x, y)]
    ends = []
    for name, line in lines.items():
        last = next((index for index in range(len(line) - 1, -1, -1) if _known(line[index])), None)
        if last is not None:
            ends.append((name, x(last), y(line[last] or 0.0), line[last]))
    above = [
        Label(x(index), y(at) - 8 if (at := lines[name][index]) is not None else frame.bottom - 5, sign, "middle",
              order.index(name))
        for name, line in (signs or {}).items() for index, sign in enumerate(line) if sign
    ]  # fmt: skip
    values = [low + i * step for i in range(round((high - low) / step) + 1)]
    marks = [Mark(x_at, y_at, order.index(name), f"{name}: {number(value)}") for name, x_at, y_at, value in ends]
    return Chart(
        title, note, y_label, x_label,
        x_ticks=tuple(Tick(x(step_at / stride), f"{step_at:,}") for step_at in _steps((longest - 1) * stride)),
        y_ticks=tuple(Tick(y(value), number(round(value, 12))) for value in values),
        lines=tuple(drawn),
        marks=tuple(marks),
        labels=(*_end_labels([(name, y_at, value) for name, _, y_at, value in ends], order, frame), *above),
        legend=tuple(Series(name, order.index(name)) for name in lines),
    )  # fmt: skip


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _pieces(line: Sequence[float | None], x: Scale, y: Callable[[float], float]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for index, value in enumerate(line):
        if value is not None and math.isfinite(value):
            pieces[-1].append(f"{x(index)},{y(value)}")
        elif pieces[-1]:
            pieces.append([])
    return [" ".join(piece) for piece in pieces if len(piece) > 1]


def _end_labels(
    ends: Sequence[tuple[str, float, float | None]], order: Sequence[str], frame: Chart
) -> tuple[Label, ...]:
    """Names beside the ends of their lines, moved apart where lines meet."""
    placed: list[Label] = []
    floor = frame.top
    for name, y_at, value in sorted(ends, key=lambda end: (end[1], order.index(end[0]))):
        at = max(y_at, floor)
        placed.append(Label(frame.right + 10, round(at + 4, 1), f"{name} {number(value)}", series=order.index(name)))
        floor = at + _LABEL_GAP
    return tuple(placed)


def _nice(low: float, high: float) -> tuple[float, float, float]:
    """Round bounds around the values, and the step between ticks."""
    span = high - low or abs(high) * 0.1 or 1.0
    raw = span / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    return bottom, top if top > bottom else bottom + step, step


def _steps(last: int) -> range:
    """Round numbers from 0 to `last`, about eight of them."""
    raw = max(1, last) / 8
    magnitude = 10 ** math.floor(math.log10(raw)) if raw >= 1 else 1
    return range(0, last + 1, next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw))
