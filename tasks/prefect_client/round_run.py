"""Control of a round by the command line: start, follow, cancel, verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

from httpx import TransportError
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Scheduled

from plumbline.cli.display import Display
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.night.central import CentralStore
from plumbline.night.deployment import REGRESSION, UPGRADE, suite_parameters
from plumbline.night.dispatch import idempotency_key
from plumbline.report.sentences import clean
from plumbline.schema.errors import (
    ConfigurationError,
    InconclusiveError,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS, open_client, server_clock, wait_for_api
from plumbline.tasks.prefect_client.flow_runs import (
    RunProgress,
    last_error,
    read_pool,
    read_progress,
    read_round_runs,
)
from plumbline.tasks.prefect_client.recovery import recover
from plumbline.upgrade.outcome import UpgradeOutcome, read_outcome

API_SECONDS = 30.0
"""Maximum seconds to wait for a server that restarts."""
_POLL_SECONDS = 0.5
_WORKER_SECONDS = 30.0
"""Maximum seconds for a new worker to come online."""
_ERRORS: dict[str, type[PlumblineError]] = {"Misconfigured": ConfigurationError, "Invalid": InvalidInputError}
_PHASES = {
    StateType.SCHEDULED: "waiting",
    StateType.PENDING: "starting",
    StateType.RUNNING: "running",
    StateType.CANCELLING: "cancelling",
    StateType.COMPLETED: "done",
}


class RoundRun:
    """One run of the deployed regression flow."""

    def __init__(self, suite: Suite, round_id: str) -> None:
        self._suite = suite
        self._round_id = round_id
        self._name = f"{REGRESSION}/{suite.name}"
        self._parameters: dict[str, Any] = {}
        self._context = open_client()
        self._id: UUID | None = None
        self._state: State | None = None
        self._said: set[UUID] = set()

    def __enter__(self) -> Self:
        self._client = self._context.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.__exit__(kind, error, trace)

    def start(self, say: Callable[[str], None] = lambda _: None) -> None:
        """Start or continue the round with the file's suite.

        Waits for a server that restarts. Raises `ConfigurationError` if nothing is deployed, and `UnavailableError` if
        the server does not answer or no worker could start the round.
        """
        deadline = time.monotonic() + API_SECONDS
        while True:
            wait_for_api(max(0.0, deadline - time.monotonic()), say)
            try:
                return self._start()  # may be repeated: its key names one run
            except TransportError:
                if time.monotonic() > deadline:
                    raise

    def _start(self) -> None:
        try:
            deployed = self._client.read_deployment_by_name(self._name)
        except ObjectNotFound as error:
            raise ConfigurationError("is not deployed", where=self._name, hint="plumbline deploy SUITE") from error
        self._wait_for_worker(deployed.work_pool_name or "")
        run = run_deployment(
            self._name,
            parameters={**suite_parameters(self._suite), "round_id": self._round_id, **self._parameters},
            flow_run_name=f"{self._suite.name} {self._round_id}",
            idempotency_key=idempotency_key(self._suite.name, self._round_id),
            timeout=0,
        )
        self._id = cast("FlowRun", run).id
        self._state = cast("FlowRun", run).state
        if self._state is not None and self._state.is_final() and not self._has_result():
            # The run of that name ended without a verdict: retry it like `prefect flow-run retry`.
            again: State[None] = Scheduled(name="AwaitingRetry")
            self._state = self._client.set_flow_run_state(self._id, again, force=True).state

    def _wait_for_worker(self, pool: str) -> None:
        deadline = time.monotonic() + _WORKER_SECONDS
        while (health := read_pool(self._client, pool)) is None or not health.is_online:
            if health is None or time.monotonic() > deadline:
                hint = f"start one: `prefect worker start --pool {pool}`"
                raise UnavailableError("no worker online", where=f"work pool {pool}", hint=hint)
            time.sleep(_POLL_SECONDS)

    def follow(self, display: Display) -> None:
        """Show the round's progress until its run has ended."""
        waits = False
        clock = server_clock(self._client)
        while self._state is None or not self._state.is_final() or self._state.is_crashed():
            time.sleep(_POLL_SECONDS)
            try:
                run = self._client.read_flow_run(self._run_id)
                self._state = run.state
                self._say_failure(display, "the round", self._run_id, self._state)
                progress = self._show(display)
                self._state = recover(self._client, self._suite, run, progress, clock()) or self._state
            except PREFECT_ERRORS:
                continue  # the server is unreachable; the round continues
            is_queued = self._state is not None and self._state.name == "AwaitingConcurrencySlot"
            if is_queued and not waits:
                display.say(f"waiting for a different round of {self._suite.name} to end")
            waits = is_queued

    def cancel(self, seconds: float, display: Display) -> None:
        """Cancel the round, and show its trainings for up to `seconds`."""
        deadline = time.monotonic() + seconds
        is_running = self._state is not None and self._state.is_running()
        state: State[None] = Cancelling() if is_running else Cancelled()
        try:
            _ = self._client.set_flow_run_state(self._run_id, state, force=not is_running)
            while time.monotonic() < deadline:
                found = self._client.read_flow_run(self._run_id).state
                if found is not None and found.is_final():
                    return
                self._show(display)
                time.sleep(_POLL_SECONDS)
        except PREFECT_ERRORS:
            return

    def verdict(self) -> RoundVerdict:
        """Return the round's verdict, or raise the error that ended it."""
        found = self._stored_verdict()
        if found is None:
            raise self._error()
        return found

    def _error(self) -> PlumblineError:
        """Return the error that ended the run, by its state's name."""
        name, message = (self._state.name, self._state.message) if self._state is not None else ("", "")
        kind = _ERRORS.get(name or "", InconclusiveError)
        return kind(message or f"it ended without a verdict, in the state {name}", where=self._name)

    @property
    def _run_id(self) -> UUID:
        if self._id is None:
            raise ValueError("the round was not started")
        return self._id

    def _has_result(self) -> bool:
        return self._stored_verdict() is not None

    def _stored_verdict(self) -> RoundVerdict | None:
        try:
            return CentralStore(open_store(self._suite.store)).get_round(self._suite.name, self._round_id)
        except ObjectMissingError:
            return None

    def _say_failure(self, display: Display, name: str, run_id: UUID, state: State | None) -> None:
        """Print once why a run crashed or is being restarted."""
        if state is None or state.id in self._said:
            return
        is_training = run_id != self._id
        if state.is_crashed() or state.name == "AwaitingRetry" or (is_training and state.is_failed()):
            self._said.add(state.id)
            # A process that ended before the flow began says why in its log alone.
            why = last_error(self._client, run_id) if state.is_crashed() else ""
            parts = (f"{name}: {state.name}", clean(state.message or ""), clean(why))
            display.say(": ".join(part for part in parts if part))

    def _show(self, display: Display) -> RunProgress | None:
        """Show the trainings' progress; return the round's own progress."""
        runs = read_round_runs(self._client, self._suite.name, self._round_id)
        progress = read_progress(self._client, [self._run_id, *(run.id for run in runs)])
        if (own := progress.get(self._run_id)) is not None:
            display.phase(own.text.partition(":")[0])
        first: set[str] = set()
        for run in runs:
            platform = next((tag.partition(":")[2] for tag in run.tags if tag.startswith("platform:")), "")
            phase = _PHASES.get(run.state.type, "failed") if run.state is not None else "waiting"
            self._say_failure(display, platform, run.id, run.state)
            shown = progress.get(run.id, RunProgress())
            title = run.name.removeprefix(f"{platform} ") if platform in first else ""
            first.add(platform)
            display.platform(platform, phase, run=str(run.id), title=title, text=shown.text, percent=shown.percent)
        return own


class UpgradeRun(RoundRun):
    """One run of the deployed upgrade flow. Its parameters are those of the flow."""

    def __init__(self, suite: Suite, upgrade_id: str, parameters: Mapping[str, Any]) -> None:
        super().__init__(suite, upgrade_id)
        self._name = f"{UPGRADE}/{suite.name}"
        self._parameters = dict(parameters)

    def outcome(self) -> UpgradeOutcome:
        """Return the upgrade's outcome; raise the run's error if there is none."""
        found = self._stored_outcome()
        if found is None:
            raise self._error()
        return found

    def _has_result(self) -> bool:
        return self._stored_outcome() is not None

    def _stored_outcome(self) -> UpgradeOutcome | None:
        return read_outcome(CentralStore(open_store(self._suite.store)), self._suite.name, self._round_id)
