"""Site pages of one suite: nights by platform, platform metrics. Pure.

Links are relative, so that the pages open from a folder, a bucket's static hosting and a local server alike.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import quote

from plumbline.judge.history.segments import MetricHistory
from plumbline.report.history import HistoryPoint, MetricView, metric_view, since
from plumbline.report.html import rendered
from plumbline.report.sentences import SYMBOLS, clean, sentence_of, some_of, when_of
from plumbline.report.story import headline
from plumbline.report.summary import LineSummary
from plumbline.schema.fact import fact
from plumbline.schema.series import JudgedRound, SeriesFile
from plumbline.schema.verdict import Outcome, RoundVerdict, worst

NIGHTS = 400
"""Maximum number of nights on a page, as many as a series file keeps verdicts of."""
MOST_CHARTS = 70
"""Maximum number of charts on a page, which bounds its size."""
_MOST_CHANGES = 60
_NAV = re.compile(r"<!--nights-->.*?<!--/nights-->", re.DOTALL)


@dataclass(frozen=True, slots=True)
class StackChange:
    """Change of spec, lock, hardware or software at one night."""

    round: str
    when: str
    what: str
    """`spec`, `lock`, `hardware` or `software`."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Matrix cell: one platform's verdict in one night."""

    outcome: Outcome | None
    symbol: str
    title: str
    is_new: bool
    """Whether its training ran on something new."""


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """Matrix row: one night, with a cell per platform."""

    round: str
    when: str
    report: str
    cells: tuple[Cell, ...]
    words: str

    @property
    def outcome(self) -> Outcome:
        """Return the worst verdict of the night."""
        return worst([cell.outcome for cell in self.cells if cell.outcome is not None])


def report_href(root: str, suite: str, round_id: str) -> str:
    """Return the relative link to a round's report, via `root`."""
    return f"{root}/rounds/{quote(suite)}/{quote(round_id)}/report.html"


def page_href(suite: str) -> str:
    """Return the relative link to a suite's page, from the start page."""
    return f"{quote(suite)}/index.html"


def platform_name(platform: str) -> str:
    """Return the file name of a platform's page."""
    return f"platform-{platform}.html"


def suite_page(
    suite: str,
    platforms: Sequence[str],
    series: Mapping[str, SeriesFile],
    latest: RoundVerdict | None,
    reports: Collection[str],
) -> str:
    """Render the matrix of nights and platforms, newest night first."""
    nights = night_rows(suite, platforms, series, reports)
    head = headline(latest, sorted(latest.platforms), "", exact=False) if latest else None
    report = report_href("../..", suite, latest.round) if latest and latest.round in reports else ""
    links = [(clean(name, 63), quote(platform_name(name))) for name in platforms]
    return rendered(
        "suite.html.j2", suite=clean(suite, 63), head=head, report=report, platforms=links, nights=nights,
        symbols=SYMBOLS,
    )  # fmt: skip


def night_rows(
    suite: str, platforms: Sequence[str], series: Mapping[str, SeriesFile], reports: Collection[str],
    *, root: str = "../..", last: int = NIGHTS,
) -> tuple[MatrixRow, ...]:  # fmt: skip
    """Return all platforms' last nights, newest first."""
    times = {name: judged.time for platform in platforms for name, judged in series[platform].judged.items()}
    newest = sorted(times, key=lambda name: (times[name], name), reverse=True)[:last]
    changes = {platform: _by_round(stack_changes(series[platform])) for platform in platforms}
    rows = []
    for name in newest:
        results = {platform: series[platform].judged.get(name) for platform in platforms}
        when = when_of(name, times[name])
        cells = tuple(
            _cell(platform, when, result, changes[platform].get(name, ())) for platform, result in results.items()
        )
        report = report_href(root, suite, name) if name in reports else ""
        rows.append(MatrixRow(clean(name, 63), when, report, cells, _not_passed(results)))
    return tuple(rows)


def _cell(platform: str, when: str, result: JudgedRound | None, changes: Sequence[StackChange]) -> Cell:
    if result is None:
        return Cell(None, "·", "", is_new=False)
    words = [result.verdict, *result.causes, *(f"new {change.what}" for change in changes)]
    title = f"{platform}, {when}: {', '.join(words)}" if len(words) > 1 or result.verdict != "pass" else ""
    return Cell(result.verdict, SYMBOLS[result.verdict], clean(title, 200), is_new=bool(changes))


def _not_passed(results: Mapping[str, JudgedRound | None]) -> str:
    """Name the platforms that did not pass, with causes."""
    groups: dict[str, list[str]] = {}
    for platform, result in results.items():
        if result is not None and result.verdict != "pass":
            groups.setdefault(", ".join(dict.fromkeys(result.causes)) or result.verdict, []).append(platform)
    return "; ".join(f"{some_of(names)}: {clean(why, 80)}" for why, names in groups.items())


def stack_changes(series: SeriesFile) -> tuple[StackChange, ...]:
    """Return every night with a spec, lock, hardware or software change."""
    changes: dict[tuple[str, str, str, str], StackChange] = {}
    for workload in series.workloads:
        for before, after in pairwise(series.places(workload)):
            for what in ("spec", "lock", "hardware", "software"):
                column = getattr(series, what)
                old, new = series.words[column[before]], series.words[column[after]]
                if old != new:
                    name = series.round[after]
                    found = StackChange(name, when_of(name, series.time[after]), what, clean(old, 80), clean(new, 80))
                    changes.setdefault((name, what, old, new), found)
    return tuple(sorted(changes.values(), key=lambda change: change.when))


def _by_round(changes: Sequence[StackChange]) -> dict[str, list[StackChange]]:
    grouped: dict[str, list[StackChange]] = {}
    for change in changes:
        grouped.setdefault(change.round, []).append(change)
    return grouped


def platform_page(
    suite: str,
    series: SeriesFile,
    lines: Sequence[tuple[MetricHistory, LineSummary]],
    reports: Collection[str],
) -> str:
    """Render a platform's metrics over its nights, and its machine changes."""
    judged = list(series.judged.items())
    points = [HistoryPoint(name, when_of(name, result.time), result.verdict) for name, result in judged]
    metrics: dict[str, list[MetricView]] = {}
    for history, summary in lines[:MOST_CHARTS]:
        metrics.setdefault(clean(history.workload, 63), []).append(metric_view(history, summary, NIGHTS))
    links = {name: report_href("../..", suite, name) for name in reports}
    latest = judged[-1][1] if judged else None
    name = clean(series.platform, 63)
    return rendered(
        "platform.html.j2",
        suite=clean(suite, 63),
        name=name,
        verdict=latest.verdict if latest else None,
        sentence=sentence_of(fact("site.state", platform=name, verdict=latest.verdict)) if latest else "",
        since=since(points, latest.verdict) if latest else "",
        causes=tuple(dict.fromkeys(latest.causes)) if latest else (),
        report=links.get(judged[-1][0], "") if judged else "",
        metrics=metrics,
        left_out=max(0, len(lines) - MOST_CHARTS),
        changes=stack_changes(series)[::-1][:_MOST_CHANGES],
        links=links,
    )


def history_page(source: str, verdict: Outcome, words: str, lines: Sequence[tuple[MetricHistory, LineSummary]]) -> str:
    """Render imported series, those with a regression first."""
    order = ("invalid", "drift", "inconclusive", "pass")
    ranked = sorted(lines, key=lambda line: order.index(line[1].verdict))
    sections: dict[str, list[MetricView]] = {}
    for history, summary in ranked[:MOST_CHARTS]:
        name = " ".join(part for part in (history.platform, history.workload) if part)
        sections.setdefault(clean(name, 130), []).append(metric_view(history, summary, NIGHTS))
    lost = [summary for _, summary in ranked if summary.verdict == verdict]
    named = some_of([_with_size(line) for line in lost])
    sentence = sentence_of(fact("site.external", names=named, verdict=verdict))
    return rendered(
        "history.html.j2", source=clean(source, 120), verdict=verdict, sentence=sentence, words=words,
        sections=sections, left_out=max(0, len(lines) - MOST_CHARTS),
    )  # fmt: skip


def _with_size(line: LineSummary) -> str:
    """Describe a series with size and date of its open regression."""
    name = " ".join(filter(None, (line.platform, line.workload, line.metric)))
    losses = [change for change in line.changes if change.worse and change.change is not None]
    if line.verdict != "drift" or not losses:
        return name
    return f"{name} {losses[-1].change:+.1%} since {losses[-1].since}"


def with_nights(page: str, suite: str, earlier: str, later: str) -> str:
    """Add links to a report page: suite, previous and next round."""
    links = [("all nights", f"../../../site/{quote(suite)}/index.html")]
    links += [("← night before", f"../{quote(earlier)}/report.html")] if earlier else []
    links += [("night after →", f"../{quote(later)}/report.html")] if later else []
    nav = rendered("nights.html.j2", links=links)
    return _NAV.sub(lambda _: f"<!--nights-->{nav}<!--/nights-->", page, count=1)
