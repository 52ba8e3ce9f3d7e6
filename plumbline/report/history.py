"""Earlier rounds of each platform, and changes of level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.history.episodes import episodes
from plumbline.history.metrics import metric_of
from plumbline.schema.verdict import Outcome, RoundVerdict


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """Result of one platform in one round."""

    round: str
    when: str
    """Displayed night: `2026-11-20`."""
    outcome: Outcome
    samples_per_second: float | None = None
    accuracy: float | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class MarkedChange:
    """First round of a new level, marked in charts."""

    platform: str
    round: str
    words: str


@dataclass(frozen=True, slots=True)
class RoundHistory:
    """Points of each platform, the oldest first.

    The last point is this round.
    """

    points: Mapping[str, Sequence[HistoryPoint]] = field(default_factory=dict)


def points_of(rounds: Sequence[tuple[str, RoundVerdict]]) -> dict[str, list[HistoryPoint]]:
    """Return each platform's points, from rounds in order.

    Each round comes with its night.
    """
    grouped: dict[str, list[HistoryPoint]] = {}
    for when, verdict in rounds:
        for name, result in verdict.platforms.items():
            cause = result.causes[0].code if result.causes else ""
            point = HistoryPoint(verdict.round, when, result.verdict, result.samples_per_second, result.accuracy, cause)
            grouped.setdefault(name, []).append(point)
    return grouped


def changes_of(points: Mapping[str, Sequence[HistoryPoint]]) -> tuple[MarkedChange, ...]:
    """Return the changes of each platform's throughput."""
    changes = []
    throughput = metric_of("throughput")
    for name, line in points.items():
        for episode in episodes(throughput.scores([point.samples_per_second for point in line])):
            before, after = throughput.value(episode.before), throughput.value(episode.after)
            text = f"{before:.4g} to {after:.4g}"
            changes.append(MarkedChange(name, line[episode.index].round, text))
    return tuple(changes)


def since(points: Sequence[HistoryPoint], outcome: Outcome) -> str:
    """Describe since when a platform has this outcome.

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
