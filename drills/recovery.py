"""A server, or the whole control machine, that goes away in the middle of nightly rounds, with nobody following them.

Prefect holds a state's event back for 15 minutes if it has not seen the state before, as after a restart. So
`rounds_outlive_their_server` waits for that long, with the true times, before it looks at the rounds again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from drills.expectations import open_client, read_trainings
from drills.processes import SERVER, TRAINER, kill_tree, worker_pid
from drills.transcript import expect, say, wait_until
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.local.stack import CONTROLLERS
from plumbline.night.central import CentralStore
from plumbline.night.deployment import REGRESSION
from plumbline.schema.suite import Alert, Suite
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.tasks.prefect_client.notifications import AppriseUrl
from tests.flows.local_stack import RunningStack
from tests.flows.small_suite import small_suite
from tests.flows.webhook_server import Receiver, receiver

__all__ = ["DRILLS"]

_HELD_BACK_SECONDS = 900
"""Prefect's PRECEDING_EVENT_LOOKBACK."""
_RESUMED_SECONDS = 300
_ROUND_SECONDS = 400
_AWAY_SECONDS = 20
_SUSPENDED_SECONDS = 175


@contextmanager
def _deployed(stack: RunningStack, name: str, steps: int = 60) -> Iterator[tuple[Suite, Receiver, SyncPrefectClient]]:
    """Deploy a suite that pages a webhook about each round without a verdict."""
    with receiver() as hook, open_client(stack) as client:
        AppriseUrl(url=hook.url).save(name, overwrite=True)
        alerts = [Alert(on=("missed", "drift", "invalid", "unavailable"), block=f"apprise-url/{name}")]
        limits = {"retries": 3, "start_seconds": 180, "run_seconds": 200}
        suite = small_suite(stack.stack.state, name, steps=steps, **limits).replace(alerts=alerts)
        stack.deploy(suite)
        yield suite, hook, client


class _Night:
    """One round of a deployment, as the schedule starts it."""

    def __init__(self, stack: RunningStack, client: SyncPrefectClient, suite: Suite, name: str) -> None:
        self.name, self._stack, self._client, self._suite = name, stack, client, suite
        deployed = client.read_deployment_by_name(f"{REGRESSION}/{suite.name}").id
        self.id: UUID = client.create_flow_run_from_deployment(deployed, parameters={"round_id": name}).id

    def read(self) -> FlowRun | None:
        """Return the run; `None` while the server is away."""
        try:
            return self._client.read_flow_run(self.id)
        except (*PREFECT_ERRORS, ObjectNotFound):
            return None

    def is_in(self, phase: str) -> bool:
        """Return whether the round has come to a phase."""
        if phase == "reporting":
            return self.verdict() is not None
        run = self.read()
        if run is None or run.state is None or not run.state.is_running():
            return False
        if phase == "dispatch":
            return True
        if phase == "training":
            return bool(self._stack.processes(TRAINER, f"--round-id {self.name}"))
        trainings = read_trainings(self._client, self.name)
        return len(trainings) == len(self._suite.platforms) and all(
            training.state is not None and training.state.is_completed() for training in trainings
        )

    def verdict(self) -> str | None:
        """Return the stored verdict."""
        try:
            return CentralStore(open_store(self._suite.store)).get_round(self._suite.name, self.name).verdict
        except ObjectMissingError:
            return None

    def ended(self) -> bool:
        """Return whether the run has ended, and not by a crash."""
        run = self.read()
        return bool(run and run.state and run.state.is_final() and not run.state.is_crashed())

    def resumed(self) -> bool:
        """Return whether the round was started again."""
        run = self.read()
        return bool(run and run.run_count > 1)

    def states(self) -> list[str]:
        """Return the names of the run's states in order."""
        states = sorted(self._client.read_flow_run_states(self.id), key=lambda state: state.timestamp)
        return [state.name or state.type.value for state in states]


def _expect_pass(night: _Night, hook: Receiver, what: str) -> None:
    wait_until(night.ended, f"{what}: the round ends", _ROUND_SECONDS)
    states = night.states()
    expect(night.verdict() == "pass", f"{what}: verdict pass (is {night.verdict()}; states: {', '.join(states)})")
    expect(states[-1] == "Completed", f"{what}: its run has ended as Completed (is {states[-1]})")
    expect(not hook.got, f"{what}: nobody is alerted {[alert['title'] for alert in hook.got] or ''}".strip())


def _kill(stack: RunningStack) -> None:
    stack.kill(SERVER)


def _restart(stack: RunningStack) -> None:
    with stack.held():
        stack.kill(SERVER, number=signal.SIGTERM)
        wait_until(lambda: not stack.processes(SERVER), "the server has ended", 60)


_PHASES = ("dispatch", "training", "gather", "reporting")
_ENDS: tuple[tuple[str, Callable[[RunningStack], None]], ...] = (("killed", _kill), ("restarted", _restart))


def rounds_outlive_their_server(stack: RunningStack) -> None:
    """The server is killed, and restarted, at each phase of a round: all pass, and a quarter of an hour later too."""
    with _deployed(stack, "drill-outlive", steps=20) as (suite, hook, client):
        nights, wrong = [], []
        for how, end in _ENDS:
            for phase in _PHASES:
                night = _Night(stack, client, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-{how}-{phase}")
                wait_until(lambda night=night, phase=phase: night.is_in(phase), f"{how} at {phase}: it begins", 300)
                stack.forgive()
                end(stack)
                began = time.monotonic()
                while not night.ended() and time.monotonic() - began < _ROUND_SECONDS:
                    time.sleep(0.5)
                text = f"{how} at {phase}: {night.verdict()} after {time.monotonic() - began:.0f} s"
                say(f"{text}; states: {', '.join(night.states())}")
                nights.append((night, how, phase))
        say(f"for {_HELD_BACK_SECONDS} s and a minute, the server holds events back")
        time.sleep(_HELD_BACK_SECONDS + 60)
        for night, how, phase in nights:
            states = night.states()
            if (night.verdict(), states[-1]) != ("pass", "Completed") or states.count("Completed") > 1:
                wrong.append(f"{how} at {phase}: {night.verdict()}; states: {', '.join(states)}")
        expect(not wrong, f"all rounds have passed once, and stay so {wrong or ''}".strip())
        expect(not hook.got, f"nobody is alerted {[alert['message'] for alert in hook.got] or ''}".strip())


def control_machine_reboots(stack: RunningStack) -> None:
    """Server, controller and the controllers' worker are killed at once, and started again: the round passes."""
    with _deployed(stack, "drill-reboot") as (suite, hook, client):
        for phase in ("dispatch", "training"):
            night = _Night(stack, client, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-{phase}")
            wait_until(lambda night=night, phase=phase: night.is_in(phase), f"reboot at {phase}: it begins", 300)
            stack.forgive()
            with stack.held():
                for pid in stack.processes(SERVER):
                    os.kill(pid, signal.SIGKILL)
                kill_tree(worker_pid(stack, CONTROLLERS))
                say(f"the control machine is off at {phase}, for {_AWAY_SECONDS} s")
                time.sleep(_AWAY_SECONDS)
            began = time.monotonic()
            wait_until(night.resumed, f"reboot at {phase}: it is resumed", _RESUMED_SECONDS)
            say(f"resumed {time.monotonic() - began:.0f} s after the machine is on again")
            _expect_pass(night, hook, f"reboot at {phase}")


def controllers_suspended(stack: RunningStack) -> None:
    """The controllers are suspended for three minutes while the server restarts: one verdict, and nobody is alerted."""
    with _deployed(stack, "drill-suspended") as (suite, hook, client):
        night = _Night(stack, client, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-suspended")
        wait_until(lambda: night.is_in("training") and bool(stack.controllers()), "it trains", 120)
        pids = stack.controllers()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        _restart(stack)
        say(f"the server has restarted, and the controller is suspended for {_SUSPENDED_SECONDS} s")
        time.sleep(_SUSPENDED_SECONDS)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        _expect_pass(night, hook, "suspended")


DRILLS = (control_machine_reboots, controllers_suspended, rounds_outlive_their_server)
