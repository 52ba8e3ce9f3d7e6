"""Chart of pairs of trainings, and words for what they lose. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from plumbline.report.charts import NARROW, WIDE, Chart, ChartMark, ChartSize, Margins, Rule, Tick, nice
from plumbline.report.sentences import number

_HEIGHT, _ROW = 96.0, 36.0
_SIZES = tuple(
    replace(size, height=_HEIGHT, margins=Margins(24, 24, 14, 40), num_ticks=count)
    for size, count in ((WIDE, 8), (NARROW, 4))
)


def change(share: float, more: str = "slower", less: str = "faster") -> str:
    """Describe a share that was lost: `8.6% slower`, `3.6 times as fast`; with other words one that has grown."""
    if share <= -1:
        return f"{1 - share:.1f} times as fast"
    return f"{abs(share):.1%} {more if share >= 0 else less}"


def between(low: float, high: float, more: str = "slower", less: str = "faster") -> str:
    """Describe the range of a share that was lost or has grown, the smaller change first if both ends agree."""
    if low >= 0 or -1 < low < high < 0:
        ends = sorted((abs(low), abs(high)))
        return f"{ends[0]:.1%} to {ends[1]:.1%} {more if low >= 0 else less}"
    return f"{change(low, more, less)} to {change(high, more, less)}"


def pairs_chart(text: str, pairs: Sequence[float], low: float, high: float, words: tuple[str, str]) -> Chart:
    """Draw each pair's lost or grown share as a dot, its interval as a band, and no change as a line.

    `text` is the chart's title and note; `words` name both directions.
    """
    title, _, note = text.partition(": ")
    room = 0.6 * (max(*pairs, 0.0) - min(*pairs, 0.0)) or 0.01
    band = max(low, min(*pairs, 0.0) - room), min(high, max(*pairs, 0.0) + room)
    frame = Chart(title.capitalize(), note, x_label=f"{words[0]} →")
    wide, narrow = (_drawn(frame, pairs, band, size, words) for size in _SIZES)
    return replace(wide, narrow=narrow)


def _drawn(
    frame: Chart, pairs: Sequence[float], band: tuple[float, float], size: ChartSize, words: tuple[str, str]
) -> Chart:
    first, last, step = nice(100 * min(*pairs, *band, 0.0), 100 * max(*pairs, *band, 0.0), size.num_ticks)
    frame = replace(frame, height=size.height, width=size.width, margins=size.margins)

    def x(share: float) -> float:
        return round(frame.left + (100 * share - first) / (last - first) * (frame.right - frame.left), 1)

    ticks = [round(first + step * index, 9) for index in range(round((last - first) / step) + 1)]
    low, high, top, bottom = x(band[0]), x(band[1]), _ROW - 14, _ROW + 14
    return replace(
        frame,
        x_ticks=tuple(Tick(x(tick / 100), f"{number(tick)} %" if tick else "0") for tick in ticks),
        bands=(f"{low},{top} {high},{top} {high},{bottom} {low},{bottom}",),
        marks=tuple(
            ChartMark(x(share), _ROW, 0, f"pair {index}: {change(share, *words)}", strong=True)
            for index, share in enumerate(pairs, start=1)
        ),
        rules=(Rule(x(0.0)),),
    )
