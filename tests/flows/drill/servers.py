"""The controller, the Prefect server and its database that go away, and a clock that jumps."""

from __future__ import annotations

import os
import signal
import sqlite3
import struct
import subprocess
import time
from pathlib import Path

from tests.flows.drill.checks import TRAINER, passes
from tests.flows.drill.telling import expect, say
from tests.flows.ground import Ground, small_suite

__all__ = ["DRILLS", "build_clock_jump", "lock_database"]


def controller_killed(this: Ground) -> None:
    """The controller is killed, and started again: it finds its children and finishes the same round."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-killed"
    one = this.start_round(round_id=name)
    one.until("aws", "running")
    before = set(this.processes(TRAINER))
    one.child.process.kill()
    expect(one.end().event is None, "the controller died without a verdict")
    again = this.start_round(round_id=name)
    verdict = passes(this, again)
    expect(verdict["round"] == name, "it is the same round")
    ran = [record for record in verdict["platforms"]["aws"]["records"] if record.endswith("-0")]
    expect(len(ran) == 1, f"the first attempt's record counts: {ran} ({len(before)} trainings were under way)")


def controller_ended(this: Ground) -> None:
    """The controller is told to end: it cancels its children first."""
    one = this.start_round()
    this.until_running(TRAINER, "--platform aws")
    one.child.process.terminate()
    ended = one.end()
    expect(ended.event is not None and ended.event.get("message") == "interrupted", "it says that it was interrupted")
    deadline = time.monotonic() + 40
    while this.processes(TRAINER) and time.monotonic() < deadline:
        time.sleep(0.2)
    expect(not this.processes(TRAINER), "no training runs on")


def server_frozen(this: Ground) -> None:
    """The server takes connections and does not answer for 20 s."""
    one = this.start_round()
    one.until("aws", "running")
    pids = this.kill("tasks.serving", number=signal.SIGSTOP)
    say("the server is frozen for 20 s")
    time.sleep(20)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    passes(this, one)


def server_stopped(this: Ground) -> None:
    """The server is stopped, away for 20 s, and started again."""
    one = this.start_round()
    one.until("aws", "running")
    with this.held():
        this.kill("tasks.serving", number=signal.SIGTERM)
        say("the server is stopped, and away for 20 s")
        time.sleep(20)
        expect(not this.processes("tasks.serving"), "the server is gone")
    passes(this, one)


def server_killed(this: Ground) -> None:
    """The server is killed, and started again."""
    one = this.start_round()
    one.until("aws", "running")
    this.kill("tasks.serving")
    passes(this, one)


def lock_database(this: Ground, seconds: float) -> None:
    """Hold the server's database for so long."""
    with sqlite3.connect(this.stack.state / "prefect" / "prefect.db", timeout=10, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        say(f"the database is locked for {seconds:g} s")
        time.sleep(seconds)
        database.execute("ROLLBACK")
    database.close()


def database_locked(this: Ground) -> None:
    """Somebody holds the database for 15 s; SQLite's own patience, after which the server goes on, is a minute."""
    one = this.start_round(small_suite(this.stack.state, "drill-locked", start_seconds=120, run_seconds=120))
    one.until("aws", "running")
    lock_database(this, 15)
    passes(this, one)


def build_clock_jump(folder: Path) -> tuple[tuple[str, ...], Path]:
    """What to put before a command so that its wall clock can be moved, and the file that says by how much."""
    library, jump = folder / "clock_jump.so", folder / "clock_jump"
    source = Path(__file__).parents[1] / "clock_jump.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    move_clock(jump, 0.0)
    return ("env", f"LD_PRELOAD={library}", f"CLOCK_JUMP={jump}"), jump


def move_clock(jump: Path, seconds: float) -> None:
    """Move the clock; in place, for the process sees the file's page."""
    if not jump.exists():
        jump.write_bytes(struct.pack("d", seconds))
    with jump.open("r+b") as file:
        file.write(struct.pack("d", seconds))


def clock_jumps(this: Ground) -> None:
    """The controller's wall clock is an hour ahead from the start, then jumps: it moves no deadline and no training."""
    prefix, jump = build_clock_jump(this.stack.state)
    move_clock(jump, 3600.0)
    one = this.start_round(prefix=prefix)
    one.until("aws", "running")
    for seconds in (-3600.0, 0.0):
        move_clock(jump, seconds)
        say(f"the controller's clock is {seconds:+.0f} s off")
        time.sleep(3)
    passes(this, one)


DRILLS = (
    controller_killed,
    controller_ended,
    server_frozen,
    server_stopped,
    server_killed,
    database_locked,
    clock_jumps,
)
