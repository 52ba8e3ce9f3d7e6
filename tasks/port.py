"""Prefect as the port that dispatch drives: starts deployments, sees their runs, cancels them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling

from plumbline.dispatch import Child, ChildState, Job
from plumbline.dispatch.loop import Run
from plumbline.rounds import TrainingOrder

__all__ = ["PREFECT_ERRORS", "PrefectPort"]

# The server is away, restarts, or its database is locked: the next look will tell.
PREFECT_ERRORS = (HTTPError, PrefectHTTPStatusError, OSError)

_PAGE = 200
_STATES = {
    StateType.COMPLETED: ChildState.COMPLETED,
    StateType.FAILED: ChildState.FAILED,
    StateType.CRASHED: ChildState.CRASHED,
    StateType.CANCELLED: ChildState.CANCELLED,
    StateType.RUNNING: ChildState.RUNNING,
    # A run that is being cancelled has not ended; what it was before says no more.
    StateType.CANCELLING: ChildState.RUNNING,
}


class PrefectPort:
    """One client of the server; one call for all runs, so that fifty platforms cost what two do."""

    def __init__(
        self,
        client: SyncPrefectClient,
        pools: Mapping[str, str],
        start: Callable[[TrainingOrder, str], UUID],
        orders: Callable[[str, int], TrainingOrder],
        recorded: Callable[[str, str], bool | None],
    ) -> None:
        self._client = client
        self._pools = pools
        self._start = start
        self._orders = orders
        self._recorded = recorded
        self._ids: dict[Run, UUID] = {}
        self.progress: dict[Run, tuple[float, str]] = {}

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:
        try:
            return {platform: self._pool_online(self._pools[platform]) for platform in platforms}
        except PREFECT_ERRORS:
            return None

    def _pool_online(self, pool: str) -> bool:
        with suppress(ObjectNotFound):
            workers = self._client.read_workers_for_work_pool(pool, limit=_PAGE)
            return any(worker.status is WorkerStatus.ONLINE for worker in workers)
        return False

    def start(self, job: Job, attempt: int) -> bool:
        try:
            self._ids[job.key, attempt] = self._start(self._orders(job.key, attempt), job.key)
        except PREFECT_ERRORS:
            return False
        return True

    def observe(self, runs: Sequence[Run]) -> Mapping[Run, Child] | None:
        ids = {self._ids[run]: run for run in runs if run in self._ids}
        if not ids:
            return {}
        try:
            found = self._client.read_flow_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(ids))), limit=_PAGE
            )
            alive = self._read_progress(ids)
        except PREFECT_ERRORS:
            return None
        return {ids[run.id]: _child(run, alive.get(run.id, "")) for run in found}

    def _read_progress(self, ids: Mapping[UUID, Run]) -> dict[UUID, str]:
        artifacts = self._client.read_artifacts(
            artifact_filter=ArtifactFilter(
                flow_run_id=ArtifactFilterFlowRunId(any_=list(ids)), type=ArtifactFilterType(any_=["progress"])
            ),
            limit=_PAGE,
        )
        alive: dict[UUID, str] = {}
        for artifact in artifacts:
            owner = artifact.flow_run_id
            if owner is not None and owner in ids:
                share = artifact.data if isinstance(artifact.data, (int, float)) else 0.0
                self.progress[ids[owner]] = (float(share), artifact.description or "")
                alive[owner] = str(artifact.updated)
        return alive

    def cancel(self, runs: Sequence[Run], *, force: bool = False) -> None:
        state: State[None] = Cancelled() if force else Cancelling()
        for run in runs:
            if run in self._ids:
                with suppress(*PREFECT_ERRORS, ObjectNotFound):
                    self._client.set_flow_run_state(self._ids[run], state, force=force)

    def recorded(self, job: Job, attempt: int) -> bool | None:
        return self._recorded(job.platform, self._orders(job.key, attempt).record_id)

    def flow_runs(self) -> dict[str, str]:
        """The flow run of each record that was asked for."""
        return {self._orders(key, attempt).record_id: str(run) for (key, attempt), run in self._ids.items()}


def _child(run: FlowRun, alive: str) -> Child:
    state = run.state
    if state is None:
        return Child(ChildState.SCHEDULED)
    known = _STATES.get(state.type, ChildState.SCHEDULED)
    return Child(known, state.message or "", alive, retryable=state.name != "Invalid")
