"""Watch flow: checks every few minutes whether the scheduled round started."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.schema.suite import Suite
from plumbline.tasks.watch import check_missed

__all__ = ["watch"]


@flow(name="plumbline-watch", persist_result=False)
def watch(suite: Suite) -> State[None]:
    """Alert about a missed round, and send pending alerts."""
    missed, undelivered = check_missed(suite)
    if undelivered:
        return Failed(message="; ".join(undelivered))
    return Completed(message=missed or "the last due round has started")
