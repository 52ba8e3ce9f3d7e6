"""Whose turn it is: one round of a suite at a time, the one that first ran. Pure.

A controller that was killed stays "running" for the server. Its sign of life tells: one that does not change for so
long, by the waiting controller's own monotonic clock, is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What has been seen of the rounds ahead, and when each last showed a sign of life."""

    lost_seconds: float = 120.0
    seen: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def look(self, ahead: Mapping[str, str], now: float) -> Turn:
        """Take the rounds that ran before ours did and have not ended, each with its last sign of life."""
        seen = {
            name: (alive, self.seen[name][1] if name in self.seen and self.seen[name][0] == alive else now)
            for name, alive in ahead.items()
        }
        return Turn(self.lost_seconds, seen)

    def waits_for(self, now: float) -> str | None:
        """The round that has to end first; none: it is ours."""
        return next((name for name, (_, since) in self.seen.items() if now - since <= self.lost_seconds), None)
