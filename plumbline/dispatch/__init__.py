"""Dispatch: decisions on each training of a round, from its observed state and the time.

`training_run` decides and is pure; `loop` drives the training runs over an `Orchestrator`; `tasks/` implements it with
Prefect.
"""

from plumbline.dispatch.loop import Orchestrator as Orchestrator
from plumbline.dispatch.loop import run_jobs as run_jobs
from plumbline.dispatch.states import Action as Action
from plumbline.dispatch.states import ChildRun as ChildRun
from plumbline.dispatch.states import ChildState as ChildState
from plumbline.dispatch.states import Job as Job
from plumbline.dispatch.states import Limits as Limits
from plumbline.dispatch.states import Recorded as Recorded
from plumbline.dispatch.states import RecordKind as RecordKind
from plumbline.dispatch.states import Result as Result
from plumbline.dispatch.states import TrainingOrder as TrainingOrder
from plumbline.dispatch.states import View as View
from plumbline.dispatch.states import idempotency_key as idempotency_key
from plumbline.dispatch.states import job_key as job_key
from plumbline.dispatch.states import record_id as record_id
from plumbline.dispatch.training_run import TrainingRun as TrainingRun
from plumbline.dispatch.training_run import advance as advance
from plumbline.dispatch.training_run import begin as begin
