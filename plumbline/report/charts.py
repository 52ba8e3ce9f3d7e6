"""Chart layout: types, margins and axes for the templates.

Positions are plain numbers, in pixels. Up to six series share one chart and differ by colour, dash and shape. More
series are drawn as small multiples: one panel per platform, beside the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Scale = Callable[[float], float]
"""Map of an index or a value to its position."""

MOST_TOGETHER = 6
"""Maximum number of series: the number of colours, dashes and shapes."""
CONTEXT, MARKED = -1, -2
"""Series in a panel: the reference behind the platform, and a platform that did not pass."""
_CHAR = 7.0
"""Width of a character of the charts' text, in pixels, rounded up."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Margins around a plot, in pixels."""

    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class ChartSize:
    """Size of a chart, and its maximum number of labels."""

    width: float
    height: float
    margins: Margins
    num_ticks: int
    """Maximum number of labels on the x axis."""
    names_ends: bool = False
    """Whether names appear at the ends of lines, in addition to the legend."""


WIDE = ChartSize(960.0, 260.0, Margins(76, 150, 24, 40), 8, names_ends=True)
NARROW = ChartSize(358.0, 230.0, Margins(58, 12, 24, 40), 4)
"""A phone's width less the page's margins, drawn at its own size: text is not scaled down."""
PANEL = ChartSize(310.0, 150.0, Margins(56, 12, 10, 26), 3)


@dataclass(frozen=True, slots=True)
class Tick:
    """Position on an axis, with its label."""

    at: float
    label: str
    minor: bool = False
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class ChartMark:
    """Point in a chart; `series` selects its shape and colour."""

    x: float
    y: float
    series: int
    title: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """Polyline as an SVG points string."""

    points: str
    series: int
    words: str = ""
    """What each point says on hover, separated by bars; "" without hover."""


@dataclass(frozen=True, slots=True)
class ChartLabel:
    """Text label within the plot."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    series: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Vertical line with a label at its upper end."""

    x: float
    y: float = 0.0
    text: str = ""
    anchor: str = "start"
    start: float | None = None
    """Upper end; the plot's by default."""


@dataclass(frozen=True, slots=True)
class Series:
    """Legend entry."""

    name: str
    index: int


@dataclass(frozen=True)
class Chart:
    """Complete chart, or a set of `panels`.

    `narrow` is the variant for phones.
    """

    title: str
    note: str
    y_label: str = ""
    x_label: str = ""
    height: float = WIDE.height
    width: float = WIDE.width
    margins: Margins = WIDE.margins
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    lines: tuple[Line, ...] = ()
    marks: tuple[ChartMark, ...] = ()
    labels: tuple[ChartLabel, ...] = ()
    rules: tuple[Rule, ...] = ()
    bands: tuple[str, ...] = ()
    """Polygons of the allowed region."""
    legend: tuple[Series, ...] = field(default=())
    narrow: Chart | None = None
    panels: tuple[Chart, ...] = ()
    is_marked: bool = False
    """Whether the panel's platform did not pass."""

    @property
    def left(self) -> float:
        """Return the plot's left edge in pixels."""
        return self.margins.left

    @property
    def right(self) -> float:
        """Return the plot's right edge in pixels."""
        return self.width - self.margins.right

    @property
    def top(self) -> float:
        """Return the plot's upper edge in pixels."""
        return self.margins.top

    @property
    def bottom(self) -> float:
        """Return the plot's lower edge in pixels."""
        return self.height - self.margins.bottom


@dataclass(frozen=True, slots=True)
class LogAxis:
    """Logarithmic axis, with extra rows for zero and non-finite values."""

    low: int
    high: int
    top: float
    bottom: float

    def at(self, value: float | None) -> float:
        """Return a value's position on the axis."""
        if value is None or not math.isfinite(value):
            return self.top
        if value <= 0:
            return self.bottom
        share = (math.log10(value) - self.low) / (self.high - self.low)
        room = 18.0
        position = self.bottom - room - share * (self.bottom - self.top - 2 * room)
        return round(min(max(position, self.top + 6), self.bottom - 6), 1)

    def ticks(self, *, zero: bool, missing: bool) -> tuple[Tick, ...]:
        """Return at most eight ticks, plus extra rows in use.

        Ticks are at least 18 pixels apart.
        """
        room = max(1.0, (self.bottom - self.top - 36) / 18)
        stride = max(1, math.ceil((self.high - self.low) / min(7.0, room)))
        ticks = [Tick(self.at(10.0**power), f"1e{power}") for power in range(self.low, self.high + 1, stride)]
        if zero:
            ticks.append(Tick(self.bottom, "equal"))
        if missing:
            ticks.append(Tick(self.top, "not finite"))
        return tuple(ticks)


def log_axis(values: Sequence[float | None], top: float, bottom: float) -> LogAxis:
    """Return a logarithmic axis that fits all positive values."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    low = math.floor(math.log10(min(known))) if known else -8
    high = math.ceil(math.log10(max(known))) if known else -4
    return LogAxis(low, max(high, low + 1), top, bottom)


def nice(low: float, high: float, pieces: int = 4) -> tuple[float, float, float]:
    """Return rounded axis bounds around the values, and the tick distance."""
    span = high - low or abs(high) * 0.1 or 1.0
    raw = span / pieces
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    return bottom, top if top > bottom else bottom + step, step


def room_for(texts: Sequence[str]) -> float:
    """Return the pixel width needed for the longest text."""
    return _CHAR * max(map(len, texts), default=0)


def shortened(text: str, width: float, least: int = 7) -> str:
    """Shorten `text` in its middle to fit `width` pixels.

    At least `least` characters remain.
    """
    most = max(least, int(width / _CHAR))
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def end_anchor(at: float, text: str, right: float) -> str:
    """Return the SVG text anchor that keeps a label left of `right`.

    `at` is the position of the text's middle.
    """
    return "end" if at + room_for([text]) / 2 > right else "middle"
