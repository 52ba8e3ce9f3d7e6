"""Watch flow: checks every few minutes whether the scheduled round started."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.schema.suite import Suite
from plumbline.tasks.machines import check_left_on
from plumbline.tasks.watch import check_missed


@flow(name="plumbline-watch", persist_result=False)
def watch(suite: Suite) -> State[None]:
    """Alert about a missed round and machines that are left on, and send pending alerts."""
    unchecked = check_left_on(suite)
    missed, undelivered = check_missed(suite)
    if failures := [*unchecked, *undelivered]:
        return Failed(message="; ".join(failures))
    return Completed(message=missed or "the last due round has started")
