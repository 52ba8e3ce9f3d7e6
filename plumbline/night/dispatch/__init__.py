"""Dispatch: decide on each training from its observed state and the time.

`training_run` decides and is pure; `loop` drives the training runs over an `Orchestrator`; `tasks/` implements it with
Prefect.
"""

from plumbline.night.dispatch.loop import Orchestrator as Orchestrator
from plumbline.night.dispatch.loop import run_jobs as run_jobs
from plumbline.night.dispatch.states import Action as Action
from plumbline.night.dispatch.states import ChildRun as ChildRun
from plumbline.night.dispatch.states import ChildState as ChildState
from plumbline.night.dispatch.states import Job as Job
from plumbline.night.dispatch.states import Limits as Limits
from plumbline.night.dispatch.states import Recorded as Recorded
from plumbline.night.dispatch.states import RecordKind as RecordKind
from plumbline.night.dispatch.states import Result as Result
from plumbline.night.dispatch.states import TrainingOrder as TrainingOrder
from plumbline.night.dispatch.states import View as View
from plumbline.night.dispatch.states import idempotency_key as idempotency_key
from plumbline.night.dispatch.states import job_key as job_key
from plumbline.night.dispatch.states import record_id as record_id
from plumbline.night.dispatch.training_run import TrainingRun as TrainingRun
from plumbline.night.dispatch.training_run import advance as advance
from plumbline.night.dispatch.training_run import begin as begin
