"""The Prefect server's clock, which decides when a flow run is due; the controller's own may be wrong, or jump."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from prefect.client.orchestration import SyncPrefectClient

from tasks.observing import PREFECT_ERRORS

__all__ = ["server_clock"]


def server_clock(client: SyncPrefectClient) -> Callable[[], datetime]:
    """Read it once, to the second, and carry it on by a clock that does not jump; our own where it cannot be read."""
    try:
        began = parsedate_to_datetime(client.request("GET", "/health").headers["date"])
    except (*PREFECT_ERRORS, KeyError, ValueError):
        began = datetime.now(UTC)
    at = time.monotonic()
    return lambda: began + timedelta(seconds=time.monotonic() - at)
