"""Prefect as the port that dispatch drives: starts deployments, sees their runs, cancels them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from plumbline.dispatch import Child, Job, TrainingOrder
from plumbline.dispatch.loop import Run
from plumbline.errors import ConfigurationError
from tasks.observing import BY_US, PREFECT_ERRORS, read_children, read_keys, worker_states
from tasks.progress import Progress, read_progress

__all__ = ["PrefectPort"]


class PrefectPort:
    """`plumbline.dispatch.Port` over one client of the server."""

    def __init__(
        self,
        client: SyncPrefectClient,
        pools: Mapping[str, str],
        start: Callable[[TrainingOrder, str], UUID],
        orders: Callable[[str, int], TrainingOrder],
        recorded: Callable[[str, str], bool | None],
    ) -> None:
        self._client = client
        self._pools, self._start = pools, start
        self._orders = orders
        self._recorded = recorded
        self._ids: dict[Run, UUID] = {}
        self.progress: dict[Run, Progress] = {}

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:  # noqa: D102 - the port's
        try:
            return {name: any((worker_states(self._client, self._pools[name]) or {}).values()) for name in platforms}
        except PREFECT_ERRORS:
            return None

    def find(self, runs: Sequence[Run]) -> Collection[Run] | None:  # noqa: D102 - the port's
        keys = {self._orders(*run).record_id: run for run in runs}
        try:
            return [keys[key] for key in read_keys(self._client, keys)]
        except PREFECT_ERRORS:
            return None

    def start(self, job: Job, attempt: int) -> bool:  # noqa: D102 - the port's
        try:
            self._ids[job.key, attempt] = self._start(self._orders(job.key, attempt), job.key)
        except ObjectNotFound as error:
            raise ConfigurationError("its training is not deployed", mend="plumbline deploy SUITE") from error
        except PREFECT_ERRORS:
            return False
        return True

    def observe(self, runs: Sequence[Run]) -> Mapping[Run, Child] | None:  # noqa: D102 - the port's
        known = {self._ids[run]: run for run in runs if run in self._ids}
        if not known:
            return {}
        try:
            alive = read_progress(self._client, known)
            children = read_children(self._client, known, alive)
        except PREFECT_ERRORS:
            return None
        self.progress |= {known[one]: progress for one, progress in alive.items() if one in known}
        return {known[one]: child for one, child in children.items()}

    def cancel(self, runs: Sequence[Run], *, force: bool = False) -> None:  # noqa: D102 - the port's
        for run in (self._ids[run] for run in runs if run in self._ids):
            with suppress(*PREFECT_ERRORS, ObjectNotFound):
                self._client.set_flow_run_state(run, Cancelled() if force else Cancelling(message=BY_US), force=force)

    def recorded(self, job: Job, attempt: int) -> bool | None:  # noqa: D102 - the port's
        return self._recorded(job.platform, self._orders(job.key, attempt).record_id)
