"""Doctor flow: check and report a worker's machine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed

from plumbline.environments.control_groups import quota_use
from plumbline.environments.selfcheck import check_trainer
from plumbline.night.doctor import look_here
from plumbline.night.doctor.stores import Visit, examine_store
from plumbline.schema.variables import variable


@flow(name="plumbline-doctor", persist_result=False)
def doctor(visits: list[Visit], trains: bool = False, python: str = "") -> State[None]:
    """Check this machine, its stores and training environment. The state's message is the report."""
    cache = Path(variable("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser()
    stores = tuple(examine_store(visit) for visit in visits)
    quota = quota_use().cores if trains else None
    torch, selfcheck, trainer = check_trainer(python) if trains else ("", None, "")
    report = look_here(cache, datetime.now(UTC), stores, selfcheck, quota)
    if python:  # torch and its CUDA are another environment's
        report = report.replace(torch=torch, cuda="")
    return Completed(message=report.replace(trainer=trainer).model_dump_json())
