"""Worker flow: run one training on this platform."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.escape import escape
from plumbline.schema.versions import validate_order
from plumbline.tasks.prefect_client.flow_runs import FAILED_NAMES, MISCONFIGURED
from plumbline.tasks.train import train_and_publish


@flow(name="plumbline-training", persist_result=False, log_prints=False)
def training(order: dict[str, Any]) -> State[None]:
    """Run the ordered training and publish its record; failures set the state."""
    try:
        # Validated here, not by Prefect: a controller of a different version is named before an unknown key.
        read = validate_order(TrainingOrder, order)
    except ConfigurationError as error:
        return Failed(name=MISCONFIGURED, message=escape(str(error), "log"))
    code, last_line = train_and_publish(read)
    if code == ExitCode.PASS:
        return Completed(message=f"record {read.record_id}")
    return Failed(
        name=FAILED_NAMES.get(code, "Failed"),
        message=escape(last_line, "log") or f"the trainer ended with exit code {code}",
    )
