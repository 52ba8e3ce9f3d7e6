"""Watch flow: every few minutes, continue crashed rounds, alert about missed ones."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.schema.suite import Suite
from plumbline.tasks.machines import check_left_on
from plumbline.tasks.watch import check_missed_rounds, recover_rounds


@flow(name="plumbline-watch", persist_result=False)
def watch(suite: Suite) -> State[None]:
    """Continue crashed rounds, and alert about missed ones and machines left running."""
    missed, failures = "", [*recover_rounds(suite), *check_left_on(suite)]
    if suite.alerts:
        missed, undelivered = check_missed_rounds(suite)
        failures += undelivered
    if failures:
        return Failed(message="; ".join(failures))
    return Completed(message=missed or "the last due round has started")
