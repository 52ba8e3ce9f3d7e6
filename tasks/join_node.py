"""Additional machines of a training: `python -m plumbline.tasks.join_node` in each pod of a job but the first.

The first pod executes the flow run. The others read its order from Prefect, and train with it; only the first one
publishes a record.
"""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

from prefect.logging.loggers import flow_run_logger

from plumbline.data.stores import open_store
from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.errors import PlumblineError
from plumbline.schema.variables import variable
from plumbline.schema.versions import validate_order
from plumbline.tasks.events import TrainerOutput
from plumbline.tasks.prefect_client.api import open_client
from plumbline.tasks.train import cache_folder, orphan_watch, shared_learning, train_ordered, work_folder

_RUN = "PREFECT__FLOW_RUN_ID"
"""Variable of Prefect's worker with the flow run that it started the job for."""


def join(run_id: str) -> None:
    """Train as one of a flow run's machines, until the run ends."""
    with open_client() as client:
        run = client.read_flow_run(UUID(run_id))
    order = validate_order(TrainingOrder, dict(run.parameters.get("order") or {}))
    logger, outbox = flow_run_logger(run), open_store(order.outbox)
    output = TrainerOutput(logger)

    def on_progress(event: dict[str, Any]) -> None:
        if event.get("event") == "said":
            output.add(str(event.get("line", "")))

    with work_folder(cache_folder(), order.record_id) as work, orphan_watch(run_id) as is_over:
        try:
            with shared_learning(order, outbox, work, logger):
                train_ordered(order, outbox, work, on_progress, is_over.is_set)
        finally:
            output.close()


def main() -> int:
    """Join the training; the first machine's exit code counts for all."""
    try:
        join(variable(_RUN))
    except PlumblineError as error:
        sys.stderr.write(f"{error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
