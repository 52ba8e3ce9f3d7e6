"""The worker's flow: one training on this platform."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.dispatch import read_order
from plumbline.errors import ExitCode
from tasks.observing import INVALID
from tasks.training import train

__all__ = ["training"]


@flow(name="training", persist_result=False, validate_parameters=False, log_prints=False)
def training(order: dict[str, Any]) -> State[None]:
    """Train what the order says. The record in the outbox is the result; the state tells a failure's kind and words."""
    checked = read_order(order)
    code, words = train(checked)
    if code == ExitCode.PASS:
        return Completed(message=f"record {checked.record_id}")
    name = INVALID if code in (ExitCode.USAGE, ExitCode.INVALID) else "Failed"
    return Failed(name=name, message=words or f"the trainer ended with exit code {code}")
