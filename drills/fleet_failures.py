"""Failures of a fleet's night, as generators that advance side by side."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from httpx import HTTPError
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from drills.database_lock import start_lock
from drills.expectations import open_client, read_trainings
from drills.fleet_night import FleetNight
from drills.processes import SERVER, parent
from drills.server_failures import move_clock
from drills.transcript import say
from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore

__all__ = ["ON_A_PLATFORM", "ON_THE_ROUND", "Steps"]

Steps = Iterator[None]


def _worker_killed_before(night: FleetNight, platform: str) -> Steps:
    night.stack.kill("worker start", f"--pool {platform}-local", number=signal.SIGSTOP)
    while night.phase(platform) != "waits for a worker":
        yield
    night.kill_worker(platform)


def _worker_killed_during(night: FleetNight, platform: str) -> Steps:
    while night.trainer(platform) is None:
        yield
    night.kill_worker(platform)


def _worker_killed_after(night: FleetNight, platform: str) -> Steps:
    outbox = open_store(night.stack.suite.platforms[platform].outbox)
    # A different failure may have cost the platform its first attempt.
    while not any(CentralStore(outbox).has_record(night.round.record(platform, attempt)) for attempt in range(2)):
        yield
    night.kill_worker(platform)


def _flow_run_killed(night: FleetNight, platform: str) -> Steps:
    while (trainer := night.trainer(platform)) is None:
        yield
    os.kill(parent(trainer), signal.SIGKILL)


def _no_worker(night: FleetNight, platform: str) -> Steps:
    night.stack.stop_worker(platform, signal.SIGKILL)
    yield


def _late_worker(night: FleetNight, platform: str) -> Steps:
    night.stack.stop_worker(platform, signal.SIGKILL)
    while not night.num_started():
        yield
    began = time.monotonic()
    while time.monotonic() - began < 15:
        yield
    night.stack.start_worker(platform)


def _hangs(night: FleetNight, platform: str) -> Steps:
    night.hold(platform)
    while (trainer := night.trainer(platform)) is None:
        yield
    os.kill(trainer, signal.SIGSTOP)


def _cancelled(night: FleetNight, platform: str) -> Steps:
    night.hold(platform)
    while night.trainer(platform) is None:
        yield
    while True:
        with suppress(HTTPError, PrefectHTTPStatusError, OSError), open_client(night.stack) as client:
            # An earlier attempt may have failed.
            result = read_trainings(client, night.round_id, f"platform:{platform}")
            running = [run.id for run in result if run.state is not None and not run.state.is_final()]
            if running:
                client.set_flow_run_state(running[0], Cancelling())
                return
        yield


def _controller_killed(night: FleetNight, _: str) -> Steps:
    while night.num_started() < 5 or night.is_server_taken:
        yield
    while True:
        with suppress(HTTPError, PrefectHTTPStatusError, OSError):
            if pids := night.stack.controllers():
                break
        yield
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _server_stopped(night: FleetNight, _: str) -> Steps:
    while night.num_started() < 3 or night.is_server_taken:
        yield
    night.is_server_taken = True
    with night.stack.held():
        night.stack.kill(SERVER, number=signal.SIGTERM)
        began = time.monotonic()
        while time.monotonic() - began < 20:
            yield
        if night.stack.processes(SERVER):
            say("the server has not ended after 20 s, and is killed, as a supervisor would")
            night.stack.kill(SERVER)
    night.is_server_taken = False


def _database_locked(night: FleetNight, _: str) -> Steps:
    while night.num_started() < 3 or night.is_server_taken:
        yield
    night.is_server_taken = True
    holder = start_lock(night.stack.stack, 15)
    while holder.poll() is None:
        yield
    if holder.returncode:
        raise AssertionError("the database could not be locked")
    night.is_server_taken = False


def _clock_jumps(night: FleetNight, _: str) -> Steps:
    while night.num_started() < 2 or night.clock is None:
        yield
    move_clock(night.clock, 3600.0)
    began = time.monotonic()
    while time.monotonic() - began < 5:
        yield
    # Back to true: on a clock that is behind, a worker finds no run due, and a killed controller would never restart.
    move_clock(night.clock, 0.0)


def _two_rounds(night: FleetNight, _: str) -> Steps:
    """Start a second round of two platforms without failures, which waits for the first."""
    while night.num_started() < 2 or night.is_server_taken:
        yield
    names = night.untouched[:2]
    suite = night.stack.suite
    chosen = suite.replace(
        reference=names[0],
        platforms={name: suite.platforms[name].model_dump() for name in names},
        local={name: suite.local[name].model_dump() for name in names},
        dispatch={"quorum": 2, "experiments": 0},
    )
    night.is_server_taken = True
    night.second = night.stack.start_deployed(night.stack.write_suite(chosen), chosen, f"{night.round_id}-second")
    # A command that finds no server at its start ends, as it should.
    begun = ("waiting for a different round", *(f"{name}: " for name in names))
    while not night.second.over and not any(line.startswith(begun) for line in list(night.second.lines)):
        yield
    night.is_server_taken = False


ON_A_PLATFORM: dict[str, Callable[[FleetNight, str], Steps]] = {
    "worker killed before": _worker_killed_before,
    "worker killed during": _worker_killed_during,
    "worker killed after": _worker_killed_after,
    "flow run killed": _flow_run_killed,
    "no worker": _no_worker,
    "late worker": _late_worker,
    "hangs": _hangs,
    "cancelled": _cancelled,
}
ON_THE_ROUND: dict[str, Callable[[FleetNight, str], Steps]] = {
    "controller killed": _controller_killed,
    "server stopped": _server_stopped,
    "database locked": _database_locked,
    "clock jumps": _clock_jumps,
    "two rounds": _two_rounds,
}
