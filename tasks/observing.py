"""What the Prefect server says of flow runs, in dispatch's words; one call for all runs."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus
from prefect.exceptions import PrefectHTTPStatusError

from plumbline.dispatch import Child, ChildState
from tasks.progress import Progress

__all__ = ["BY_US", "INVALID", "PREFECT_ERRORS", "read_children", "read_keys", "worker_states"]

# The server is away, restarts, or its database is locked: the next look will tell.
PREFECT_ERRORS = (HTTPError, PrefectHTTPStatusError, OSError)

BY_US = "the round's controller ends it"
"""The words of a cancel that no person asked for."""
INVALID = "Invalid"
"""The state of a training that would fail again: wrong input, not infrastructure."""

_PAGE = 200
_STATES = {
    StateType.COMPLETED: ChildState.COMPLETED,
    StateType.FAILED: ChildState.FAILED,
    StateType.CRASHED: ChildState.CRASHED,
    StateType.CANCELLED: ChildState.CANCELLED,
    StateType.PENDING: ChildState.PENDING,
    StateType.RUNNING: ChildState.RUNNING,
    # A run that is being cancelled has not ended; what it was before says no more.
    StateType.CANCELLING: ChildState.RUNNING,
}


def worker_states(client: SyncPrefectClient, pool: str) -> dict[str, bool] | None:
    """Whether each worker of a pool is online; `None` where there is no such pool."""
    try:
        workers = client.read_workers_for_work_pool(pool)
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    return {worker.name: worker.status is WorkerStatus.ONLINE for worker in workers}


def read_keys(client: SyncPrefectClient, keys: Collection[str]) -> list[str]:
    """Those of the idempotency keys under which there is a run."""
    every, found = list(keys), list[str]()
    for first in range(0, len(every), _PAGE):
        some = FlowRunFilterIdempotencyKey(any_=every[first : first + _PAGE])
        wanted = FlowRunFilter(idempotency_key=some)
        found += [run.idempotency_key or "" for run in client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE)]
    return [key for key in found if key in keys]


def read_children(client: SyncPrefectClient, runs: Collection[UUID], alive: dict[UUID, Progress]) -> dict[UUID, Child]:
    """The state of each run."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(runs)))
    found = client.read_flow_runs(flow_run_filter=wanted, limit=_PAGE)
    return {run.id: _child(client, run, alive.get(run.id, Progress())) for run in found}


def _child(client: SyncPrefectClient, run: FlowRun, alive: Progress) -> Child:
    if run.state is None:
        return Child(ChildState.SCHEDULED)
    known = _STATES.get(run.state.type, ChildState.SCHEDULED)
    by_person = _by_person(client, run) if known is ChildState.CANCELLED else None
    return Child(known, run.state.message or "", alive.changed, run.state.name != INVALID, by_person)


def _by_person(client: SyncPrefectClient, run: FlowRun) -> bool | None:
    """Whether a person was the first to ask for its end; the worker that ended it wrote words of its own."""
    asked = [state for state in client.read_flow_run_states(run.id) if state.type is StateType.CANCELLING]
    return min(asked, key=lambda state: state.timestamp).message != BY_US if asked else None
