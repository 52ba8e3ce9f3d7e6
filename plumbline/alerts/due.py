"""Whether a round that was due has started. Pure: times and the clock are handed in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

__all__ = ["last_due", "ran_after", "start_key", "started_at"]

_EARLY = timedelta(seconds=60)
_FORM = "%Y%m%dT%H%M%SZ"


def start_key(suite: str, round_id: str, now: datetime) -> str:
    """The mark that a round has started: its key says when."""
    return f"started/{suite}/{now.astimezone(UTC):{_FORM}}-{round_id}"


def started_at(key: str) -> datetime | None:
    """When the round of such a mark started."""
    stamp = key.rpartition("/")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


def last_due(times: Sequence[datetime], now: datetime, grace_seconds: float, since: datetime) -> datetime | None:
    """The last time that a round was due whose grace is over; none before `since`, when watching began."""
    over = [time for time in times if time >= since and time + timedelta(seconds=grace_seconds) <= now]
    return max(over, default=None)


def ran_after(starts: Iterable[datetime], due: datetime) -> bool:
    """Whether a round has started since; a scheduler may be a little early."""
    return any(start >= due - _EARLY for start in starts)
