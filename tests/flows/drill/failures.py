"""What can happen to a night of the fleet. Each failure goes step by step; between two, the others have their turn."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from httpx import HTTPError
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from plumbline.bundles import has_record
from plumbline.localstack import postgres
from plumbline.stores import open_store
from tests.flows.drill.checks import parent, server
from tests.flows.drill.nights import Night
from tests.flows.drill.servers import move_clock
from tests.flows.drill.telling import say

__all__ = ["ON_A_PLATFORM", "ON_THE_ROUND", "Course"]

Course = Iterator[None]


def _worker_killed_before(night: Night, platform: str) -> Course:
    night.this.kill("worker start", f"--pool {platform}-local", number=signal.SIGSTOP)
    while night.phase(platform) != "waiting":
        yield
    night.kill_worker(platform)


def _worker_killed_during(night: Night, platform: str) -> Course:
    while night.trainer(platform) is None:
        yield
    night.kill_worker(platform)


def _worker_killed_after(night: Night, platform: str) -> Course:
    outbox = open_store(night.this.suite.platforms[platform].outbox)
    # Another failure may have cost it its first attempt.
    while not any(has_record(outbox, f"{night.round_id}-{platform}-tiny-{attempt}") for attempt in range(2)):
        yield
    night.kill_worker(platform)


def _child_killed(night: Night, platform: str) -> Course:
    while (trainer := night.trainer(platform)) is None:
        yield
    os.kill(parent(trainer), signal.SIGKILL)


def _no_worker(night: Night, platform: str) -> Course:
    night.this.stop_worker(platform, signal.SIGKILL)
    yield


def _late_worker(night: Night, platform: str) -> Course:
    night.this.stop_worker(platform, signal.SIGKILL)
    while not night.phase(platform):
        yield
    began = time.monotonic()
    while time.monotonic() - began < 15:
        yield
    night.this.start_worker(platform)


def _hangs(night: Night, platform: str) -> Course:
    night.hold(platform)
    while (trainer := night.trainer(platform)) is None:
        yield
    os.kill(trainer, signal.SIGSTOP)


def _cancelled(night: Night, platform: str) -> Course:
    night.hold(platform)
    while night.trainer(platform) is None:
        yield
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{night.round_id}", f"platform:{platform}"]))
    while True:
        with suppress(HTTPError, PrefectHTTPStatusError, OSError), server(night.this) as client:
            # An attempt before it may have failed.
            found = client.read_flow_runs(flow_run_filter=wanted)
            running = [run.id for run in found if run.state is not None and not run.state.is_final()]
            if running:
                client.set_flow_run_state(running[0], Cancelling())
                return
        yield


def _controller_killed(night: Night, _: str) -> Course:
    while night.running() < 5:
        yield
    assert night.one is not None
    night.one.child.process.kill()
    while not night.one.over:
        yield
    night.start()


def _server_stopped(night: Night, _: str) -> Course:
    while night.running() < 3 or night.server_taken:
        yield
    night.server_taken = True
    with night.this.held():
        night.this.kill("tasks.serving", number=signal.SIGTERM)
        began = time.monotonic()
        while time.monotonic() - began < 20:
            yield
        if night.this.processes("tasks.serving"):
            say("the server did not stop within 20 s, and is killed, as a supervisor would")
            night.this.kill("tasks.serving")
    night.server_taken = False


def _database_locked(night: Night, _: str) -> Course:
    while night.running() < 3 or night.server_taken:
        yield
    night.server_taken = True
    lock = "BEGIN; LOCK TABLE flow_run, flow_run_state IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(15); COMMIT"
    database = postgres.connection_url(night.this.stack.servers.postgres_port or 0).replace("+asyncpg", "")
    holder = subprocess.Popen(["psql", database, "-c", lock], stdout=subprocess.DEVNULL)
    while holder.poll() is None:
        yield
    if holder.returncode:
        raise AssertionError("the database could not be locked")
    night.server_taken = False


def _clock_jumps(night: Night, _: str) -> Course:
    while night.running() < 2 or night.clock is None:
        yield
    move_clock(night.clock, 3600.0)
    began = time.monotonic()
    while time.monotonic() - began < 5:
        yield
    move_clock(night.clock, -3600.0)


def _two_rounds(night: Night, _: str) -> Course:
    """The second is of two platforms that nothing happens to, and waits for the first."""
    while night.running() < 2:
        yield
    names = night.untouched[:2]
    suite = night.this.suite
    chosen = suite.replace(
        reference=names[0],
        platforms={name: suite.platforms[name].model_dump() for name in names},
        local={name: suite.local[name].model_dump() for name in names},
        dispatch={"quorum": 2, "experiments": 0},
    )
    night.second = night.this.start_round(chosen)


ON_A_PLATFORM: dict[str, Callable[[Night, str], Course]] = {
    "worker killed before": _worker_killed_before,
    "worker killed during": _worker_killed_during,
    "worker killed after": _worker_killed_after,
    "child killed": _child_killed,
    "no worker": _no_worker,
    "late worker": _late_worker,
    "hangs": _hangs,
    "cancelled": _cancelled,
}
ON_THE_ROUND: dict[str, Callable[[Night, str], Course]] = {
    "controller killed": _controller_killed,
    "server stopped": _server_stopped,
    "database locked": _database_locked,
    "clock jumps": _clock_jumps,
    "two rounds": _two_rounds,
}
