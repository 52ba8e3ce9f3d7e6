"""Time of a night by the controller's clock, which orders a series.

A worker's clock may be days off. Ordered by it, a night would stand before nights that were judged, or after all that
are still to come, and the engine, which decides on the newest night, would decide on none.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

__all__ = ["ROUND_TIME", "night_time"]

ROUND_TIME = "%Y%m%d-%H%M%S"
"""Start of a round's name: its time in UTC."""
_NAMED = re.compile(r"(\d{8}-\d{6})-")
_TOLERANCE = timedelta(days=1)


def night_time(round_id: str, started_at: datetime, now: datetime | None = None) -> datetime:
    """Return the time in the round's name.

    Of a round that a user named, return the training's start by the worker's clock, or `now`, the controller's time, if
    that is more than a day away.
    """
    named = _NAMED.match(round_id)
    if named is not None:
        try:
            return datetime.strptime(named[1], ROUND_TIME).replace(tzinfo=UTC)
        except ValueError:
            pass  # a user's name that only looks like a time
    return started_at if now is None or abs(started_at - now) <= _TOLERANCE else now
