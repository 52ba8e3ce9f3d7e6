"""Choice of the rounds to remove. Pure: rounds, accepted records and the time are arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from plumbline.schema.verdict import RoundVerdict

__all__ = ["NEWEST", "Choice", "StoredRound", "choose"]

NEWEST = 30
"""Number of newest rounds that always stay, as the report shows them."""


@dataclass(frozen=True, slots=True)
class StoredRound:
    """Round of the suite in the central store."""

    name: str
    started_at: datetime | None
    """Start time; `None` if unknown."""
    verdict: RoundVerdict | None
    """`None` for a round without a verdict: its controller died, or its removal was interrupted."""

    @property
    def is_drift(self) -> bool:
        """Return whether the round or a platform drifted."""
        results = self.verdict.platforms.values() if self.verdict else ()
        return self.verdict is not None and "drift" in {self.verdict.verdict, *(one.verdict for one in results)}

    @property
    def records(self) -> frozenset[str]:
        """Return the ids of the records in the verdict."""
        results = self.verdict.platforms.values() if self.verdict else ()
        return frozenset(name for one in results for name in one.records)


@dataclass(frozen=True, slots=True)
class Choice:
    """Rounds to remove, and the reason for each round that stays."""

    gone: tuple[str, ...]
    kept: dict[str, str]


def choose(
    rounds: Sequence[StoredRound],
    *,
    accepted_records: Collection[str],
    accepted_rounds: Collection[str],
    now: datetime,
    keep_days: float,
) -> Choice:
    """Return the rounds to remove: old, passed, and not accepted; unknown ages stay."""
    limit = now - timedelta(days=keep_days)
    dated = sorted((one.started_at, one.name) for one in rounds if one.started_at is not None and one.verdict)
    newest = {name for _, name in dated[-NEWEST:]}
    gone: list[str] = []
    kept: dict[str, str] = {}
    for one in rounds:
        if one.is_drift:
            kept[one.name] = "drifted"
        elif one.name in accepted_rounds or not one.records.isdisjoint(accepted_records):
            kept[one.name] = "accepted"
        elif one.started_at is None:
            kept[one.name] = "age unknown"
        elif one.started_at > limit:
            kept[one.name] = "young"
        elif one.name in newest:
            kept[one.name] = f"among the newest {NEWEST}"
        else:
            gone.append(one.name)
    return Choice(tuple(gone), kept)
