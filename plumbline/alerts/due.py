"""Decision whether a due round has started. Pure: times are arguments.

The due times are those of Prefect's own scheduled flow runs, which start the rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EARLY = timedelta(seconds=60)
_FORM = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class Planned:
    """Prefect's flow runs of a suite's round."""

    active: bool = True
    """False while a person has paused the deployment or its schedule."""
    times: tuple[datetime, ...] = ()
    """Expected start times of the runs, past and future, in order; without cancelled runs."""


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


def last_due(times: Iterable[datetime], now: datetime, grace_seconds: float) -> datetime | None:
    """Return the last due time whose grace period is over."""
    return max((time for time in times if time + timedelta(seconds=grace_seconds) <= now), default=None)


def ran_after(starts: Iterable[datetime], due: datetime) -> bool:
    """Return whether a round started since `due`; schedulers may be 60 s early."""
    return any(start >= due - _EARLY for start in starts)
