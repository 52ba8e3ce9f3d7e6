"""Flow runs and work pools: states and progress, converted for `plumbline.night.dispatch`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterIdempotencyKey,
    FlowRunFilterTags,
    LogFilter,
    LogFilterFlowRunId,
    LogFilterLevel,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType, WorkerStatus, WorkPool, WorkPoolStatus
from prefect.client.schemas.sorting import ArtifactSort, LogSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Scheduled

from plumbline.night.deployment import RESUMED, suite_tag
from plumbline.night.dispatch import ChildRun, ChildState
from plumbline.schema.errors import ConfigurationError, ExitCode
from plumbline.schema.record import MAX_MESSAGE
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.api import PAGE, PREFECT_ERRORS, open_client, paged, server_errors
from plumbline.tasks.prefect_client.platform_apis import PlatformApis, open_apis

CANCELLED_BY_ROUND = "cancelled by the round's controller"
"""Message of a cancellation by a controller."""
INFRASTRUCTURE_PENDING = "InfrastructurePending"
"""State name of a run whose pod waits for a node or an image."""
INVALID, MISCONFIGURED = "Invalid", "Misconfigured"
"""State names of a run with wrong input, and of one whose machine is not set up for it: a retry would fix neither."""
FAILED_NAMES: dict[int, str] = {ExitCode.USAGE: MISCONFIGURED, ExitCode.INVALID: INVALID}
"""State names of a worker's failed run by its exit code; "Failed" for all others."""

T = TypeVar("T")
_STATES = {
    StateType.COMPLETED: ChildState.COMPLETED,
    StateType.FAILED: ChildState.FAILED,
    StateType.CRASHED: ChildState.CRASHED,
    StateType.CANCELLED: ChildState.CANCELLED,
    StateType.PENDING: ChildState.PENDING,
    StateType.RUNNING: ChildState.RUNNING,
    # A run that is being cancelled has not ended.
    StateType.CANCELLING: ChildState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """Health of a work pool: what Prefect knows about its workers."""

    workers: dict[str, bool]
    """Whether each known worker is online, by name."""
    has_workers: bool = True
    """False for push and managed pools: Prefect itself starts their runs, and no worker polls."""
    kind: str = "process"

    @property
    def is_online(self) -> bool:
        """Return whether a run in this pool can start now."""
        return not self.has_workers or any(self.workers.values())


def read_pool(client: SyncPrefectClient, pool: str) -> PoolHealth | None:
    """Return a work pool's health, or `None` if it does not exist."""
    try:
        found = client.read_work_pool(pool)
        if found.is_push_pool or found.is_managed_pool:
            return PoolHealth({}, has_workers=False, kind=found.type)
        workers = client.read_workers_for_work_pool(pool)
    except ObjectNotFound:
        return None
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            return None
        raise
    return PoolHealth({worker.name: worker.status is WorkerStatus.ONLINE for worker in workers}, kind=found.type)


def read_online(client: SyncPrefectClient, pools: Collection[str]) -> dict[str, bool]:
    """Return for each existing work pool whether runs can start now.

    Only a pool that is paused is asked for its workers, which its status hides.
    """
    wanted = WorkPoolFilter(name=WorkPoolFilterName(any_=list(pools)))
    online = {}
    for pool in paged(partial(client.read_work_pools, work_pool_filter=wanted)):
        if pool.status in (WorkPoolStatus.READY, WorkPoolStatus.NOT_READY):
            is_ready = pool.status is WorkPoolStatus.READY
            online[pool.name] = is_ready or pool.is_push_pool or pool.is_managed_pool
        else:
            health = read_pool(client, pool.name)
            online[pool.name] = health is not None and health.is_online
    return online


def start_run(
    apis: PlatformApis, platform: str, deployment: str, *, parameters: dict[str, Any], name: str,
    tags: Sequence[str] = (), key: str = "", due: datetime | None = None, job_variables: dict[str, Any] | None = None,
) -> UUID:  # fmt: skip
    """Start a deployment on the platform's API, and return the run's id.

    On the controller's own API the run is a child of this flow run. A different API knows nothing of this one.
    """
    settings: dict[str, Any] = {"parameters": parameters, "tags": [*tags], "job_variables": job_variables}
    if apis.is_own(platform):
        run = run_deployment(
            deployment, flow_run_name=name, idempotency_key=key or None, scheduled_time=due, timeout=0, **settings
        )
        return cast("FlowRun", run).id

    def create(client: SyncPrefectClient) -> UUID:
        found = client.read_deployment_by_name(deployment)
        return client.create_flow_run_from_deployment(
            found.id, name=name, idempotency_key=key or None, state=Scheduled(scheduled_time=due), **settings
        ).id

    return apis.ask(apis.of(platform), create)


def check_image_pools(suite: Suite, platforms: Sequence[str]) -> None:
    """Raise `ConfigurationError` if a platform's work pool cannot run a chosen image.

    A platform whose own API does not answer is left to dispatch, which stops no other platform for it.
    """
    refused = []
    with server_errors(), open_apis(suite) as apis:
        for name in platforms:
            pool = suite.platforms[name].work_pool
            try:
                found = apis.ask(apis.of(name), partial(SyncPrefectClient.read_work_pool, work_pool_name=pool))
            except ObjectNotFound as error:
                hint = "run `plumbline deploy SUITE`"
                raise ConfigurationError(f"work pool {pool} does not exist", where=suite.name, hint=hint) from error
            except PREFECT_ERRORS:
                if apis.is_own(name):
                    raise
                continue
            if "image" not in found.base_job_template.get("variables", {}).get("properties", {}):
                refused.append(f"{name} ({found.type})")
    if refused:
        what = f"no image can be chosen for the runs of {', '.join(refused)}"
        hint = "name a lock, or platforms whose work pool has the job variable image: Kubernetes, ECS, Cloud Run, ACI"
        raise ConfigurationError(what, where=suite.name, key="candidate.image", hint=hint)


def closed_reason(client: SyncPrefectClient, found: WorkPool, name: str) -> tuple[str, str] | None:
    """Return why no worker can receive the queue's runs, with a hint, else `None`."""
    pool = found.name
    if found.is_paused:
        return f"work pool {pool} is paused", f"`prefect work-pool resume {pool}`"
    if found.concurrency_limit == 0:
        return f"work pool {pool} has the concurrency limit 0", f"`prefect work-pool set-concurrency-limit {pool} 1`"
    try:
        queue = client.read_work_queue_by_name(name, pool)
    except ObjectNotFound:
        return f"work queue {name} of {pool} does not exist", "run `plumbline deploy SUITE`"
    if queue.is_paused:
        return f"work queue {name} of {pool} is paused", f"`prefect work-queue resume {name} --pool {pool}`"
    if queue.concurrency_limit == 0:
        hint = f"`prefect work-queue clear-concurrency-limit {name} --pool {pool}`"
        return f"work queue {name} of {pool} has the concurrency limit 0", hint
    return None


def _lots(values: Collection[T], size: int) -> Iterator[list[T]]:
    """Split values into lists of at most `size`."""
    every = list(values)
    yield from (every[first : first + size] for first in range(0, len(every), size))


def read_keys(client: SyncPrefectClient, keys: Collection[str]) -> list[str]:
    """Return the idempotency keys that already have a run."""
    found = list[str]()
    for lot in _lots(keys, PAGE):
        some = FlowRunFilterIdempotencyKey(any_=lot)
        wanted = FlowRunFilter(idempotency_key=some)
        found += [run.idempotency_key or "" for run in client.read_flow_runs(flow_run_filter=wanted, limit=PAGE)]
    return [key for key in found if key in keys]


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Last progress report of a run, from its artifact."""

    percent: float = 0.0
    text: str = ""
    changed: str = ""


def read_progress(client: SyncPrefectClient, runs: Collection[UUID]) -> dict[UUID, RunProgress]:
    """Return the newest progress of each run."""
    found: dict[UUID, RunProgress] = {}
    # A run that started several times has several artifacts.
    for lot in _lots(runs, PAGE // 2):
        wanted = ArtifactFilter(
            flow_run_id=ArtifactFilterFlowRunId(any_=lot), type=ArtifactFilterType(any_=["progress"])
        )
        for artifact in client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.UPDATED_DESC, limit=PAGE):
            if artifact.flow_run_id is not None and artifact.flow_run_id not in found:
                percent = float(artifact.data) if isinstance(artifact.data, (int, float)) else 0.0
                found[artifact.flow_run_id] = RunProgress(
                    percent, (artifact.description or "")[:MAX_MESSAGE], str(artifact.updated)
                )
    return found


def read_children(
    client: SyncPrefectClient, runs: Collection[UUID], alive: dict[UUID, RunProgress]
) -> dict[UUID, ChildRun]:
    """Return the state of each run."""
    found = [
        run
        for lot in _lots(runs, PAGE)
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=lot)), limit=PAGE)
    ]
    waiting = [run.id for run in found if run.state is not None and run.state.name == INFRASTRUCTURE_PENDING]
    hindered = (_last_warnings(client, waiting) if waiting else {}) | _closed_places(client, found)
    return {run.id: _child(client, run, alive.get(run.id, RunProgress()), hindered.get(run.id, "")) for run in found}


def _closed_places(client: SyncPrefectClient, runs: Collection[FlowRun]) -> dict[UUID, str]:
    """Return for each late run why its work pool or queue gives it to no worker, if so."""
    places: dict[tuple[str, str], list[UUID]] = {}
    for run in runs:
        if run.state is not None and run.state.name == "Late" and run.work_pool_name:
            places.setdefault((run.work_pool_name, run.work_queue_name or "default"), []).append(run.id)
    closed: dict[UUID, str] = {}
    for (pool, queue), late in places.items():
        if (reason := closed_reason(client, client.read_work_pool(pool), queue)) is not None:
            closed |= dict.fromkeys(late, "{} (hint: {})".format(*reason))
    return closed


def _last_warnings(client: SyncPrefectClient, runs: Collection[UUID]) -> dict[UUID, str]:
    """Return each run's newest warning, where Prefect's Kubernetes worker explains pending pods."""
    found: dict[UUID, str] = {}
    for lot in _lots(runs, PAGE):
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=lot), level=LogFilterLevel(ge_=logging.WARNING))
        for log in client.read_logs(wanted, limit=PAGE, sort=LogSort.TIMESTAMP_DESC):
            if log.flow_run_id is not None:
                found.setdefault(log.flow_run_id, log.message.strip().partition("\n")[0])
    return found


def _child(client: SyncPrefectClient, run: FlowRun, alive: RunProgress, hindered: str) -> ChildRun:
    if run.state is None:
        return ChildRun(ChildState.SCHEDULED)
    known = _STATES.get(run.state.type, ChildState.SCHEDULED)
    by_person = _cancelled_by_person(client, run) if known is ChildState.CANCELLED else None
    message = (hindered or run.state.message or "")[:MAX_MESSAGE]  # a worker's own words
    is_misconfigured = run.state.name == MISCONFIGURED
    retryable = not is_misconfigured and run.state.name != INVALID
    return ChildRun(known, message, alive.changed, retryable, by_person, is_misconfigured)


def _cancelled_by_person(client: SyncPrefectClient, run: FlowRun) -> bool | None:
    """Return whether a person cancelled the run first; `None` if unknown."""
    asked = [state for state in client.read_flow_run_states(run.id) if state.type is StateType.CANCELLING]
    return min(asked, key=lambda state: state.timestamp).message != CANCELLED_BY_ROUND if asked else None


def count_crashes(run_id: UUID) -> int:
    """Count a run's crashes since scheduling; 0 if unknown."""
    try:
        with open_client() as client:
            states = sorted(client.read_flow_run_states(run_id), key=lambda state: state.timestamp)
    except (ObjectNotFound, *PREFECT_ERRORS):
        return 0
    crashes, is_counted, before = 0, False, StateType.SCHEDULED
    for state in states:
        if state.type is StateType.CRASHED:
            crashes += not is_counted  # the runner and the worker both report a crash
            is_counted = True
        elif state.type in (StateType.PENDING, StateType.RUNNING):
            is_counted = False
        elif state.is_final() or (state.is_scheduled() and before is StateType.CRASHED and state.message != RESUMED):
            crashes = 0
        before = state.type
    return crashes


def last_error(client: SyncPrefectClient, run_id: UUID) -> str:
    """Return the last line of the newest error in the run's log."""
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]), level=LogFilterLevel(ge_=logging.ERROR))
    logs = client.read_logs(wanted, limit=1, sort=LogSort.TIMESTAMP_DESC)
    return logs[0].message.strip().rpartition("\n")[2] if logs else ""


def release_deleted_slot(run_id: UUID) -> None:
    """Release the run's concurrency slot if its deployment was deleted. Do nothing if the server does not answer.

    Prefect refuses every final state of a run that holds a slot of a concurrency limit that is gone.
    """
    with suppress(*PREFECT_ERRORS, ObjectNotFound), open_client() as client:
        run = client.read_flow_run(run_id)
        lease = run.state.state_details.deployment_concurrency_lease_id if run.state is not None else None
        if lease is None or run.deployment_id is None:
            return
        try:
            client.read_deployment(run.deployment_id)
        except ObjectNotFound:
            _ = client.release_concurrency_slots_with_lease(lease)


def read_round_runs(client: SyncPrefectClient, suite: str, round_id: str) -> list[FlowRun]:
    """Return the training runs of a round, oldest first."""
    tags = FlowRunFilterTags(all_=[suite_tag(suite), f"round:{round_id}"])
    runs = paged(partial(client.read_flow_runs, flow_run_filter=FlowRunFilter(tags=tags)))
    return sorted(runs, key=lambda run: str(run.created))
