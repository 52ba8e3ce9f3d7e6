"""Decision whether a due round has started. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

__all__ = ["last_due", "ran_after", "start_key", "started_at"]

_EARLY = timedelta(seconds=60)
_FORM = "%Y%m%dT%H%M%SZ"


def start_key(suite: str, round_id: str, now: datetime) -> str:
    """Return the key of a started round's marker; the key contains the time."""
    return f"started/{suite}/{now.astimezone(UTC):{_FORM}}-{round_id}"


def started_at(key: str) -> datetime | None:
    """Return the start time in a marker's key; `None` if malformed."""
    stamp = key.rpartition("/")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None


def last_due(times: Sequence[datetime], now: datetime, grace_seconds: float, since: datetime) -> datetime | None:
    """Return the last due time whose grace period is over, not before `since`."""
    over = [time for time in times if time >= since and time + timedelta(seconds=grace_seconds) <= now]
    return max(over, default=None)


def ran_after(starts: Iterable[datetime], due: datetime) -> bool:
    """Return whether a round started since `due`; schedulers may be 60 s early."""
    return any(start >= due - _EARLY for start in starts)
