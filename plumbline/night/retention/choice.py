"""Choice of rounds to delete. Pure: rounds, accepted records and the time are arguments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from plumbline.schema.verdict import RoundVerdict

NEWEST = 30
"""Number of newest rounds that always stay, as the report shows them."""


@dataclass(frozen=True, slots=True)
class StoredRound:
    """One stored round of the suite."""

    name: str
    started_at: datetime | None
    """Start time; `None` if unknown."""
    verdict: RoundVerdict | None
    """`None` for a round without a verdict: its controller died, or its removal was interrupted."""

    @property
    def is_drift(self) -> bool:
        """Return whether the round or a platform drifted."""
        results = self.verdict.platforms.values() if self.verdict else ()
        return self.verdict is not None and "drift" in {self.verdict.verdict, *(result.verdict for result in results)}

    @property
    def records(self) -> frozenset[str]:
        """Return the ids of all records that the verdict names."""
        results = self.verdict.platforms.values() if self.verdict else ()
        return frozenset(name for result in results for name in result.records)


@dataclass(frozen=True, slots=True)
class Choice:
    """Rounds to delete, and reasons why others stay."""

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
    """Choose rounds to delete: old, passed, not accepted. Unknown ages stay."""
    limit = now - timedelta(days=keep_days)
    dated = sorted(
        (round_.started_at, round_.name) for round_ in rounds if round_.started_at is not None and round_.verdict
    )
    newest = {name for _, name in dated[-NEWEST:]}
    gone: list[str] = []
    kept: dict[str, str] = {}
    for round_ in rounds:
        if round_.is_drift:
            kept[round_.name] = "drifted"
        elif round_.name in accepted_rounds or not round_.records.isdisjoint(accepted_records):
            kept[round_.name] = "accepted"
        elif round_.started_at is None:
            kept[round_.name] = "age unknown"
        elif round_.started_at > limit:
            kept[round_.name] = "young"
        elif round_.name in newest:
            kept[round_.name] = f"among the newest {NEWEST}"
        else:
            gone.append(round_.name)
    return Choice(tuple(gone), kept)
