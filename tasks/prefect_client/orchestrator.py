"""Prefect implementation of the `Orchestrator` interface: start, observe, cancel runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from plumbline.night.dispatch import ChildRun, Job, Recorded, idempotency_key
from plumbline.night.dispatch.loop import DispatchedRun
from plumbline.schema.errors import ConfigurationError
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.tasks.prefect_client.flow_runs import (
    CANCELLED_BY_ROUND,
    RunProgress,
    read_children,
    read_keys,
    read_online,
    read_progress,
)
from plumbline.tasks.prefect_client.platform_apis import PlatformApis, in_background

_STARTS_AT_ONCE = 8
_LOOK_SECONDS = 0.5
"""Seconds for which the loop waits for an outbox; most answer in a tenth of it."""
_NOT_DEPLOYED = ConfigurationError("its training is not deployed", hint="run `plumbline deploy SUITE`")


class WorkerOrder(Protocol):
    """Order for a worker, identified by its `record_id`."""

    @property
    def record_id(self) -> str:
        """Return the id of the record or report in the outbox."""

    @property
    def platform(self) -> str:
        """Return the platform that the order is for."""


OrderType = TypeVar("OrderType", bound=WorkerOrder)


class PrefectOrchestrator(Generic[OrderType]):
    """Implementation of `plumbline.night.dispatch.Orchestrator` over the platforms' Prefect APIs.

    An API that does not answer is nothing that is known of its platforms, and stops no other platform.
    """

    def __init__(
        self,
        apis: PlatformApis,
        suite: str,
        pools: Mapping[str, str],
        *,
        start: Callable[[OrderType, str], UUID],
        orders: Callable[[str, int], OrderType],
        recorded: Callable[[OrderType], Recorded | None],
    ) -> None:
        self._apis = apis
        self._suite = suite
        self._pools, self._start = pools, start
        self._orders = orders
        self._recorded = recorded
        self._ids: dict[DispatchedRun, UUID] = {}
        self._platforms: dict[DispatchedRun, str] = {}
        self._looks: dict[tuple[str, int, bool], Future[Recorded | None]] = {}
        self.progress: dict[DispatchedRun, RunProgress] = {}

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool | None]:
        """Return whether each platform can start a run now."""
        found: dict[str, bool | None] = dict.fromkeys(platforms)
        for client, names in self._apis.groups(platforms):
            with suppress(*PREFECT_ERRORS):
                pools = {self._pools[name] for name in names}
                online = self._apis.ask(client, partial(read_online, pools=pools))
                found |= {name: online.get(self._pools[name], False) for name in names}
        return found

    def find(self, runs: Sequence[DispatchedRun]) -> Collection[DispatchedRun] | None:
        """Return the runs that already exist on the servers."""
        orders = {run: self._orders(*run) for run in runs}
        found: list[DispatchedRun] = []
        for client, platforms in self._apis.groups(dict.fromkeys(order.platform for order in orders.values())):
            keys = {
                idempotency_key(self._suite, order.record_id): run
                for run, order in orders.items()
                if order.platform in platforms
            }
            try:
                found += [keys[key] for key in self._apis.ask(client, partial(read_keys, keys=keys))]
            except PREFECT_ERRORS:
                return None
        return found

    def start(self, attempts: Sequence[tuple[Job, int]]) -> Mapping[DispatchedRun, str]:
        """Start the attempts, platforms in parallel."""
        lots: dict[str, list[tuple[Job, int]]] = {}
        for job, attempt in attempts:
            # A different API answers one request at a time, and Prefect numbers the runs of one deployment.
            place = job.platform if self._apis.is_own(job.platform) else f"api {id(self._apis.of(job.platform))}"
            lots.setdefault(place, []).append((job, attempt))
        if not lots:
            return {}
        with ThreadPoolExecutor(min(_STARTS_AT_ONCE, len(lots)), thread_name_prefix="start") as pool:
            # Each in a context of its own, which names the flow run whose children these are.
            answers = [pool.submit(copy_context().run, self._start_in_order, lot) for lot in lots.values()]
            return {run: refusal for answer in answers for run, refusal in answer.result().items()}

    def _start_in_order(self, attempts: Sequence[tuple[Job, int]]) -> dict[DispatchedRun, str]:
        answers: dict[DispatchedRun, str] = {}
        for job, attempt in attempts:
            run = (job.key, attempt)
            try:
                self._ids[run] = self._start(self._orders(*run), job.key)
            except ObjectNotFound:
                answers[run] = str(_NOT_DEPLOYED)
                continue
            except PREFECT_ERRORS:
                continue
            self._platforms[run] = job.platform
            answers[run] = ""
        return answers

    def observe(self, runs: Sequence[DispatchedRun]) -> Mapping[DispatchedRun, ChildRun]:
        """Read the state of each run, omitting servers that do not respond."""
        children: dict[DispatchedRun, ChildRun] = {}
        started = [run for run in runs if run in self._ids]
        for client, platforms in self._apis.groups(dict.fromkeys(self._platforms[run] for run in started)):
            known = {self._ids[run]: run for run in started if self._platforms[run] in platforms}
            with suppress(*PREFECT_ERRORS):
                alive = self._apis.ask(client, partial(read_progress, runs=known))
                states = self._apis.ask(client, partial(read_children, runs=known, alive=alive))
                self.progress |= {known[run_id]: progress for run_id, progress in alive.items() if run_id in known}
                children |= {known[run_id]: child for run_id, child in states.items()}
        return children

    def cancel(self, runs: Sequence[DispatchedRun], *, force: bool = False) -> None:
        """Cancel the runs."""
        for run in (run for run in runs if run in self._ids):
            with suppress(*PREFECT_ERRORS, ObjectNotFound):
                state: State[None] = Cancelled() if force else Cancelling(message=CANCELLED_BY_ROUND)
                change = partial(_set_state, run_id=self._ids[run], state=state, force=force)
                self._apis.ask(self._apis.of(self._platforms[run]), change)

    def recorded(self, job: Job, attempt: int, *, has_ended: bool) -> Recorded | None:
        """Return whether the attempt's record is already in the outbox.

        An outbox that does not answer holds up no other platform: the look goes on beside the loop. One that began
        before the run's end says nothing about a record of its end.
        """
        asked = (job.key, attempt, has_ended)
        seconds = 0.0
        if asked not in self._looks:
            self._looks[asked] = in_background(partial(self._recorded, self._orders(job.key, attempt)))
            seconds = _LOOK_SECONDS
        try:
            found = self._looks[asked].result(seconds)
        except TimeoutError:
            return None
        del self._looks[asked]
        return found


def _set_state(client: SyncPrefectClient, run_id: UUID, state: State[None], *, force: bool) -> None:
    client.set_flow_run_state(run_id, state, force=force)
