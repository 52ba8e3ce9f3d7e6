"""Doctor's flow: report of a worker's machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from plumbline.doctor import look_here
from plumbline.doctor.place import check_stack, read_cpu_quota
from plumbline.doctor.stores import Visit, examine_store
from plumbline.variables import variable

__all__ = ["doctor"]


@flow(name="plumbline-doctor", persist_result=False)
def doctor(visits: list[Visit], trains: bool = False) -> State[None]:
    """Check this machine, its stores and training stack; the state's message is the report."""
    cache = Path(variable("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser()
    stores = tuple(examine_store(visit) for visit in visits)
    selfcheck = check_stack() if trains else None
    quota = read_cpu_quota() if trains else None
    return Completed(message=look_here(cache, datetime.now(UTC), stores, selfcheck, quota).model_dump_json())
