"""Dispatch: decisions on each training of a round, from its observed state and the time.

`training_run` decides and is pure; `loop` drives the training runs over an `Orchestrator`; `tasks/` implements it with
Prefect.
"""

from plumbline.dispatch.loop import Orchestrator, run_jobs
from plumbline.dispatch.states import (
    Action,
    ChildRun,
    ChildState,
    Job,
    Limits,
    Recorded,
    RecordKind,
    Result,
    TrainingOrder,
    View,
    idempotency_key,
    job_key,
    record_id,
)
from plumbline.dispatch.training_run import TrainingRun, advance, begin

__all__ = [
    "Action",
    "ChildRun",
    "ChildState",
    "Job",
    "Limits",
    "Orchestrator",
    "RecordKind",
    "Recorded",
    "Result",
    "TrainingOrder",
    "TrainingRun",
    "View",
    "advance",
    "begin",
    "idempotency_key",
    "job_key",
    "record_id",
    "run_jobs",
]
