"""Prefect server and database that do not answer, and a clock that jumps."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drills.database_lock import start_lock
from drills.expectations import expect_pass, expect_settled, open_client, read_controller_run
from drills.processes import SERVER
from drills.transcript import expect, say
from plumbline.local.stack import CONTROLLERS
from tests.flows.clocks import jumped_clock
from tests.flows.local_stack import RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS", "controllers_with_clock", "move_clock"]

_AWAY_SECONDS = 20
_LONG_SECONDS = 150


def server_frozen(stack: RunningStack) -> None:
    """The server accepts connections and does not answer for 20 s."""
    round_ = stack.start_round()
    round_.until("aws", "trains")
    pids = stack.kill(SERVER, number=signal.SIGSTOP)
    say(f"the server is frozen for {_AWAY_SECONDS} s")
    time.sleep(_AWAY_SECONDS)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    expect_pass(stack, round_)


def server_stopped(stack: RunningStack) -> None:
    """The server is stopped, away for 20 s, and started again."""
    round_ = stack.start_round()
    round_.until("aws", "trains")
    with stack.held():
        stack.kill(SERVER, number=signal.SIGTERM)
        say(f"the server is stopped, and away for {_AWAY_SECONDS} s")
        time.sleep(_AWAY_SECONDS)
        if stack.processes(SERVER):
            say(f"the server has not ended after {_AWAY_SECONDS} s, and is killed, as a supervisor would")
            stack.kill(SERVER)
    expect_pass(stack, round_)


def server_away_for_long(stack: RunningStack) -> None:
    """The server is away longer than heartbeats and leases last: the third attempt passes."""
    suite = small_suite(stack.stack.state, "drill-away", steps=150, run_seconds=400, retries=2)
    round_ = stack.start_round(suite)
    round_.until("aws", "trains")
    with stack.held():
        stack.kill(SERVER)
        say(f"the server is killed, and away for {_LONG_SECONDS} s")
        time.sleep(_LONG_SECONDS)
    verdict = round_.verdict(400)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    with open_client(stack) as client:
        states = client.read_flow_run_states(read_controller_run(client, round_).id)
    say(f"states of the round: {', '.join(state.name or state.type.value for state in states)}")
    expect_settled(stack, round_, verdict, resumes=1)


def server_killed(stack: RunningStack) -> None:
    """The server is killed, and started again."""
    round_ = stack.start_round()
    round_.until("aws", "trains")
    stack.kill(SERVER)
    expect_pass(stack, round_)


def database_locked(stack: RunningStack) -> None:
    """A different process holds the server's database for 15 s."""
    suite = small_suite(stack.stack.state, "drill-locked", start_seconds=120, run_seconds=120)
    round_ = stack.start_round(suite)
    round_.until("aws", "trains")
    _lock_database(stack, 15)
    expect_pass(stack, round_)


def _lock_database(stack: RunningStack, seconds: float) -> None:
    say(f"the database is locked for {seconds:g} s")
    expect(start_lock(stack.stack, seconds).wait(seconds + 30) == 0, "the lock was held")


@contextmanager
def controllers_with_clock(stack: RunningStack) -> Iterator[Path]:
    """Start a controllers' worker with a movable clock; yield the file for `move_clock`."""
    variables = jumped_clock(stack.stack.state, 0.0)
    stack.stop_worker(CONTROLLERS)
    os.environ |= variables  # a worker of the stack inherits them
    try:
        stack.start_worker(CONTROLLERS)
    finally:
        for key in variables:
            os.environ.pop(key)
    try:
        stack.until_online(CONTROLLERS)
        yield Path(variables["CLOCK_JUMP"])
    finally:
        stack.stop_worker(CONTROLLERS)
        stack.start_worker(CONTROLLERS)
        stack.until_online(CONTROLLERS)


def move_clock(jump: Path, seconds: float) -> None:
    """Shift the clock by `seconds`, in place, because the processes map the file."""
    with jump.open("r+b") as file:
        file.write(struct.pack("d", seconds))


def clock_jumps(stack: RunningStack) -> None:
    """The controllers' clock is an hour ahead, then jumps: no deadline and no training moves."""
    with controllers_with_clock(stack) as jump:
        move_clock(jump, 3600.0)
        round_ = stack.start_round()
        round_.until("aws", "trains")
        for seconds in (-3600.0, 0.0):
            move_clock(jump, seconds)
            say(f"the controllers' clock is {seconds:+.0f} s off")
            time.sleep(3)
        verdict = expect_pass(stack, round_)
        expect(verdict["timings"]["total"] < 600, f"no duration follows the clock: {verdict['timings']['total']:.0f} s")


DRILLS = (server_frozen, server_stopped, server_killed, server_away_for_long, database_locked, clock_jumps)
