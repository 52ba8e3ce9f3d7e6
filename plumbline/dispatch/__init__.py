"""Dispatch: what to do next with each training of a round, given what is seen of it and the time.

The lane decides and is pure; the loop drives lanes over a port; `tasks/` gives that port Prefect's face.
"""

from plumbline.dispatch.lane import Lane, advance, begin
from plumbline.dispatch.loop import Port, run_jobs
from plumbline.dispatch.names import job_key, record_id
from plumbline.dispatch.order import TrainingOrder, read_order
from plumbline.dispatch.states import Action, Child, ChildState, Job, Limits, Result, View

__all__ = [
    "Action",
    "Child",
    "ChildState",
    "Job",
    "Lane",
    "Limits",
    "Port",
    "Result",
    "TrainingOrder",
    "View",
    "advance",
    "begin",
    "job_key",
    "read_order",
    "record_id",
    "run_jobs",
]
