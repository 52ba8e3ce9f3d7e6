"""Rounds that meet, that a schedule starts, and whose command is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from plumbline.central import CentralStore
from plumbline.localstack.process import MARK, marked, stop
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tests.flows.drill.checks import parent, passes
from tests.flows.drill.telling import expect, expect_soon, say
from tests.flows.ground import Ground, small_suite, to_toml

__all__ = ["DRILLS", "command_ended"]


def two_rounds(this: Ground) -> None:
    """Two rounds at once: the second waits for the first, and both end well; a suite may refuse instead."""
    first = this.start_round()
    first.until("aws", "running")
    second = this.start_round()
    second.until_said("waits for")
    refusing = this.suite.replace(dispatch={"overlap": "refuse"})
    third = this.start_round(refusing).end()
    expect(third.event is not None and third.event.get("exit_code") == 3, "the third is refused, with exit code 3")
    passes(this, first)
    second.waited_seconds = first.took
    passes(this, second)


def schedule_fires(this: Ground) -> None:
    """A schedule of one minute starts a round, through the deployments of `plumbline deploy`."""
    suite = small_suite(this.stack.state, "drill-nightly").replace(schedule={"cron": "* * * * *"})
    path = this.stack.state / "nightly.toml"
    _deploy(this, suite, path, "--publish")
    worker = this.stack.start_controller_worker("plumbline")
    central, began = CentralStore(open_store(suite.store)), time.monotonic()
    try:
        while not (found := [one for one in _rounds(central) if one.suite == suite.name]):
            expect_soon(began, 200, "the schedule fires")
    finally:
        _deploy(this, suite.replace(schedule=None), path)
        stop([worker], grace_seconds=30)
    expect(found[0].verdict == "pass", f"the scheduled round {found[0].round} passes: {found[0].notes}")
    say(f"{time.monotonic() - began:.0f} s from the deployment to the verdict")


def _deploy(this: Ground, suite: Suite, path: Path, *options: str) -> None:
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", "deploy", str(path), "--state", str(this.stack.state), *options]
    done = subprocess.run(command, env=this.stack.environment(), capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"plumbline deploy {' '.join(options)}: {(done.stdout + done.stderr).strip()[-300:]}")


def _rounds(central: CentralStore) -> list[RoundVerdict]:
    return [central.get_round(name) for name in central.list_rounds()]


def command_ended(state: Path, number: signal.Signals) -> None:
    """`plumbline run` itself is ended in mid-round: nothing of its stack is left."""
    suite = state / "suite.toml"
    # Long enough that it is still under way when the command has told of it.
    content = small_suite(state, steps=64).model_dump(mode="json", exclude_none=True)
    suite.write_text(to_toml(content), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", "run", str(suite), "--state", str(state)]
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    mark = ""
    for line in child.stderr or ():
        if "trains probe" in line:
            mark = _mark_below(child.pid)
            child.send_signal(number)
            break
    child.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    expect(bool(mark) and not marked(mark), f"{number.name}: exit code {child.returncode}, no process is left over")


def _mark_below(pid: int) -> str:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if parent(int(entry.name)) == pid:
                for part in (entry / "environ").read_bytes().split(b"\0"):
                    if part.startswith(f"{MARK}=".encode()):
                        return part.decode().partition("=")[2]
        except OSError:
            continue
    return ""


DRILLS = (two_rounds, schedule_fires)
