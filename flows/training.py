"""Worker's flow: one training on this platform."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.dispatch import TrainingOrder
from plumbline.errors import ExitCode
from plumbline.escape import escape
from plumbline.tasks.prefect_client.flow_runs import INVALID
from plumbline.tasks.train import train_and_publish

__all__ = ["training"]


@flow(name="plumbline-training", persist_result=False, log_prints=False)
def training(order: TrainingOrder) -> State[None]:
    """Train as ordered; the record is the result, the state the kind of failure."""
    code, last_line = train_and_publish(order)
    if code == ExitCode.PASS:
        return Completed(message=f"record {order.record_id}")
    name = INVALID if code in (ExitCode.USAGE, ExitCode.INVALID) else "Failed"
    return Failed(name=name, message=escape(last_line, "log") or f"the trainer ended with exit code {code}")
