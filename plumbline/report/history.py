"""History of each platform: earlier rounds, metric charts, decisions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plumbline.judge.history.metrics import BY_NAME
from plumbline.judge.history.segments import MetricHistory
from plumbline.judge.statistics.changepoints import changes
from plumbline.report.charts import Chart
from plumbline.report.curves import ChangeMark, Curves, curves
from plumbline.report.decisions import entry_sentence
from plumbline.report.sentences import SYMBOLS, clean, number, seconds, sentence_of, templates
from plumbline.report.summary import ChangeSummary, LineSummary
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Outcome, RoundVerdict

_MOST_CALLS = 40
_MIB = 1 << 20
_UNITS = {"bytes": ("MiB", 1 / _MIB)}
"""Displayed unit and factor of a metric's unit."""


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One platform's result in one round."""

    round: str
    when: str
    """Displayed night: `2026-11-20`."""
    outcome: Outcome
    samples_per_second: float | None = None


Points = Mapping[str, Sequence[HistoryPoint]]
"""Points of each platform, the oldest first; the last point is this round."""


def points_of(rounds: Sequence[tuple[str, RoundVerdict]]) -> dict[str, list[HistoryPoint]]:
    """Return each platform's results in round order, with night dates."""
    grouped: dict[str, list[HistoryPoint]] = {}
    for when, verdict in rounds:
        for name, result in verdict.platforms.items():
            point = HistoryPoint(verdict.round, when, result.verdict, result.samples_per_second)
            grouped.setdefault(name, []).append(point)
    return grouped


def history_chart(points: Points, order: Sequence[str], marked: frozenset[str] = frozenset()) -> Chart | None:
    """Draw throughput per round, with failed rounds and level changes."""
    when = {point.round: point.when for line in points.values() for point in line}
    by_round = {name: {point.round: point for point in line} for name, line in points.items()}
    return curves(
        Curves(
            "Throughput over time", "Samples per second, round by round; ✕ drift, ? inconclusive, ! invalid.",
            {name: [by_id[it].samples_per_second if it in by_id else None for it in when]
             for name, by_id in by_round.items()},
            "samples / s", "round", order,
            x_names=[night or clean(round_id, 14) for round_id, night in when.items()],
            signs={name: [SYMBOLS[by_id[it].outcome] if it in by_id and by_id[it].outcome != "pass" else ""
                          for it in when] for name, by_id in by_round.items()},
            changes=changes_of(points), marked=marked,
        )
    )  # fmt: skip


def changes_of(points: Points) -> list[ChangeMark]:
    """Return each platform's throughput level changes."""
    rounds = list(dict.fromkeys(point.round for line in points.values() for point in line))
    throughput = BY_NAME["throughput"]
    return [
        ChangeMark(
            rounds.index(line[change.index].round), name,
            f"{throughput.value(change.before):.4g} to {throughput.value(change.after):.4g}",
        )
        for name, line in points.items()
        for change in changes(throughput.scores([point.samples_per_second for point in line]))
    ]  # fmt: skip


def since(points: Sequence[HistoryPoint], outcome: Outcome) -> str:
    """Describe since when a platform has had this outcome.

    The last point is this round.
    """
    earlier = list(points[:-1])
    if not earlier:
        return "no earlier round on record"
    first = points[-1]
    for point in reversed(earlier):
        if point.outcome != outcome:
            last = point
            break
        first = point
    else:
        return f"in every round on record, since {first.when or first.round}"
    count = len(points) - list(points).index(first)
    rounds = "this round" if count == 1 else f"{count} rounds"
    return f"{first.when or first.round} ({rounds}); before that {last.outcome} on {last.when or last.round}"


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """Table row on a noteworthy decision of one night."""

    round: str
    when: str
    verdict: Outcome
    words: str
    cause: str


@dataclass(frozen=True, slots=True)
class MetricView:
    """Chart of one metric, with sentences about its level."""

    key: str
    name: str
    last: str
    """Last measured value, with its unit; "" if there is none."""
    level: str
    tonight: str
    verdict: Outcome
    chart: Chart | None
    changes: tuple[str, ...]
    decisions: tuple[DecisionRow, ...]

    @property
    def is_known(self) -> bool:
        """Return whether its nights were enough for a verdict."""
        return bool(self.tonight) or self.verdict == "pass"


def metric_view(history: MetricHistory, summary: LineSummary, last: int) -> MetricView:
    """Build the view of one metric's `last` nights."""
    unit, factor = _UNITS.get(summary.unit, (summary.unit, 1.0))
    return MetricView(
        key=clean(summary.metric, 80),
        name=label_of(summary.metric),
        last=_with_unit(next((value for value in reversed(history.values) if value is not None), None), unit, factor),
        level=level_sentence(summary),
        tonight="" if summary.reason in ("quiet", "learning") else clean(_short(history, summary.sentence), 600),
        verdict=summary.verdict,
        chart=_chart(history, summary, max(len(history.values) - last, 0), unit, factor),
        changes=tuple(change_sentence(change) for change in reversed(summary.changes)),
        decisions=_decisions(history),
    )


def label_of(metric: str) -> str:
    """Return a metric's name in words; that of another tool's stays."""
    return templates().get(f"metric.{metric}", clean(metric, 80))


def _with_unit(value: float | None, unit: str, factor: float) -> str:
    if value is None:
        return ""
    return seconds(value) if unit == "s" else f"{number(value * factor)}{f' {unit}' if unit else ''}"


def level_sentence(summary: LineSummary) -> str:
    """Describe a metric's reference, spread and limit."""
    if summary.reference is None:
        return sentence_of(fact("line.learning", nights=summary.nights - summary.missing))
    unit, factor = _UNITS.get(summary.unit, (summary.unit, 1.0))
    limit = "" if summary.limit is None else fact("line.limit", limit=f"{summary.limit * factor:.4g}")
    least = "" if summary.least_loss is None else fact("line.least-loss", size=f"{abs(summary.least_loss):.1%}")
    return sentence_of(
        fact(
            "line.reference",
            reference=f"{summary.reference * factor:.4g}",
            unit=f" {unit}" if unit else "",
            spread=f"{summary.relative_sd or 0:.2%}",
            nights=summary.reference_nights,
            limit=limit,
            least=least,
        )
    )


def change_sentence(change: ChangeSummary) -> str:
    """Describe one lasting change of a metric."""
    return sentence_of(
        fact(
            "line.change",
            shape=change.shape,
            since=change.since
            if change.round.startswith((change.since, change.since.replace("-", "")))
            else f"{change.since} ({clean(change.round, 63)})",
            before=f"{change.before:.4g}",
            after=f"{change.after:.4g}",
            size="" if change.change is None else f" ({change.change:+.1%})",
            way="worse" if change.worse else "better",
            beside=f", with a change of {change.with_boundary}" if change.with_boundary else "",
        )
    )


def _chart(history: MetricHistory, summary: LineSummary, first: int, unit: str, factor: float) -> Chart | None:
    """Draw the nights, reference and limit; `None` below two nights."""
    values = [None if value is None else value * factor for value in history.values[first:]]
    lines: dict[str, Sequence[float | None]] = {"measured": values}
    for name, level in {"reference": summary.reference, "limit": summary.limit}.items():
        if level is not None:
            lines[name] = [level * factor if first + index >= summary.level else None for index in range(len(values))]
    decided = {place - first: entry.verdict for place, entry in history.calls}
    signs = [SYMBOLS[decided[index]] if decided.get(index, "pass") != "pass" else "" for index in range(len(values))]
    rounds = {name: index for index, name in enumerate(history.rounds[first:])}
    changes = [
        ChangeMark(rounds[change.round], change.shape, f"{change.before * factor:.4g} to {change.after * factor:.4g}")
        for change in summary.changes
        if change.round in rounds
    ]
    changes += [
        ChangeMark(boundary.index - first, "new baseline", boundary.after)
        for boundary in history.boundaries
        if boundary.what == "baseline" and boundary.index >= first
    ]
    note = sentence_of(fact("line.chart", nights=len(values)))
    return curves(
        Curves(
            label_of(summary.metric), note, lines, unit, "night", tuple(lines),
            x_names=[history.day(first + index) for index in range(len(values))],
            signs={"measured": signs}, changes=sorted(changes, key=lambda change: change.index),
        )
    )  # fmt: skip


def _short(history: MetricHistory, sentence: str) -> str:
    """Remove the workload and metric names from a decision's sentence."""
    return sentence.removeprefix(f"{history.workload}: {history.metric.name}; ")


def _decisions(history: MetricHistory) -> tuple[DecisionRow, ...]:
    """Return the latest decisions, newest first."""
    return tuple(
        DecisionRow(
            round=history.rounds[place],
            when=history.day(place),
            verdict=entry.verdict,
            words=clean(_short(history, entry_sentence(history, entry)), 400),
            cause=entry.cause or "",
        )
        for place, entry in sorted(history.calls, key=lambda call: call[0], reverse=True)[:_MOST_CALLS]
    )
