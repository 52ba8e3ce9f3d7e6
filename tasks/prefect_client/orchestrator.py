"""Prefect as dispatch's `Orchestrator`: starts, observes and cancels runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from plumbline.dispatch import ChildRun, Job, Recorded, idempotency_key
from plumbline.dispatch.loop import Run
from plumbline.errors import ConfigurationError
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.tasks.prefect_client.flow_runs import (
    CANCELLED_BY_ROUND,
    RunProgress,
    read_children,
    read_keys,
    read_pool,
    read_progress,
)


class WorkerOrder(Protocol):
    """Order for a worker; its `record_id` names the attempt."""

    @property
    def record_id(self) -> str:
        """Return the id of the attempt's record or report in the outbox."""


OrderType = TypeVar("OrderType", bound=WorkerOrder)


class PrefectOrchestrator(Generic[OrderType]):
    """`plumbline.dispatch.Orchestrator` over one client of the server."""

    def __init__(
        self,
        client: SyncPrefectClient,
        suite: str,
        pools: Mapping[str, str],
        *,
        start: Callable[[OrderType, str], UUID],
        orders: Callable[[str, int], OrderType],
        recorded: Callable[[OrderType], Recorded | None],
    ) -> None:
        self._client = client
        self._suite = suite
        self._pools, self._start = pools, start
        self._orders = orders
        self._recorded = recorded
        self._ids: dict[Run, UUID] = {}
        self.progress: dict[Run, RunProgress] = {}

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:
        """Return whether a run of each platform can start now."""
        try:
            pools = {name: read_pool(self._client, self._pools[name]) for name in platforms}
        except PREFECT_ERRORS:
            return None
        return {name: pool is not None and pool.is_online for name, pool in pools.items()}

    def find(self, runs: Sequence[Run]) -> Collection[Run] | None:
        """Return the runs that exist already on the server."""
        keys = {idempotency_key(self._suite, self._orders(*run).record_id): run for run in runs}
        try:
            return [keys[key] for key in read_keys(self._client, keys)]
        except PREFECT_ERRORS:
            return None

    def start(self, job: Job, attempt: int) -> bool:
        """Dispatch one attempt."""
        try:
            self._ids[job.key, attempt] = self._start(self._orders(job.key, attempt), job.key)
        except ObjectNotFound as error:
            raise ConfigurationError("its training is not deployed", hint="run `plumbline deploy SUITE`") from error
        except PREFECT_ERRORS:
            return False
        return True

    def observe(self, runs: Sequence[Run]) -> Mapping[Run, ChildRun] | None:
        """Read the state of each run."""
        known = {self._ids[run]: run for run in runs if run in self._ids}
        if not known:
            return {}
        try:
            alive = read_progress(self._client, known)
            children = read_children(self._client, known, alive)
        except PREFECT_ERRORS:
            return None
        self.progress |= {known[run_id]: progress for run_id, progress in alive.items() if run_id in known}
        return {known[run_id]: child for run_id, child in children.items()}

    def cancel(self, runs: Sequence[Run], *, force: bool = False) -> None:
        """Cancel the runs."""
        for run in (self._ids[run] for run in runs if run in self._ids):
            with suppress(*PREFECT_ERRORS, ObjectNotFound):
                state: State[None] = Cancelled() if force else Cancelling(message=CANCELLED_BY_ROUND)
                self._client.set_flow_run_state(run, state, force=force)

    def recorded(self, job: Job, attempt: int) -> Recorded | None:
        """Return whether the attempt's record is in the outbox."""
        return self._recorded(self._orders(job.key, attempt))
