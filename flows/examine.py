"""The doctor's flow on a platform: what its worker sees there."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from plumbline.doctor import look_here
from plumbline.doctor.stores import Visit, examine_store

__all__ = ["examine"]


@flow(name="examine", persist_result=False, validate_parameters=False)
def examine(data: str, outbox: str, datasets: list[str]) -> State[None]:
    """Look around with this worker's own credentials; the report is the state's message."""
    cache = Path(os.environ.get("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser()
    visits = [Visit("data", data, "read", dataset) for dataset in datasets]
    stores = [examine_store(visit) for visit in (*visits, Visit("outbox", outbox, "write and read"))]
    return Completed(message=look_here(cache, datetime.now(UTC), tuple(stores)).model_dump_json())
