"""What happened before: one point for each platform and round, and since when something is so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.history.episodes import episodes
from plumbline.history.metrics import metric_of
from plumbline.schema.verdict import Outcome, RoundVerdict

__all__ = ["ChangePoint", "History", "HistoryPoint", "changes_of", "points_of", "since"]


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One platform in one round."""

    round: str
    when: str
    """The night, as it is shown: `2026-11-20`."""
    outcome: Outcome
    samples_per_second: float | None = None
    accuracy: float | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change point: the first round that is different from those before."""

    platform: str
    round: str
    words: str


@dataclass(frozen=True, slots=True)
class History:
    """Platform by platform, the oldest round first; this round is the last point."""

    points: Mapping[str, Sequence[HistoryPoint]] = field(default_factory=dict)


def points_of(rounds: Sequence[tuple[str, RoundVerdict]]) -> dict[str, list[HistoryPoint]]:
    """History from rounds in order, each with its night."""
    found: dict[str, list[HistoryPoint]] = {}
    for when, verdict in rounds:
        for name, result in verdict.platforms.items():
            cause = result.causes[0].code if result.causes else ""
            point = HistoryPoint(verdict.round, when, result.verdict, result.samples_per_second, result.accuracy, cause)
            found.setdefault(name, []).append(point)
    return found


def changes_of(points: Mapping[str, Sequence[HistoryPoint]]) -> tuple[ChangePoint, ...]:
    """The change points of each platform's throughput."""
    found = []
    throughput = metric_of("throughput")
    for name, line in points.items():
        for one in episodes(throughput.scores([point.samples_per_second for point in line])):
            before, after = throughput.value(one.before), throughput.value(one.after)
            words = f"{name}: {before:.4g} to {after:.4g} samples/s"
            found.append(ChangePoint(name, line[one.index].round, words))
    return tuple(found)


def since(points: Sequence[HistoryPoint], outcome: Outcome) -> str:
    """Since when the platform has this outcome, in words; its last point is the round reported."""
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
