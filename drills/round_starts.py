"""Concurrent rounds, scheduled rounds, and a local round whose command is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from drills.expectations import expect_no_leftovers, expect_pass, open_client, read_controller_run
from drills.processes import read_ppid
from drills.transcript import expect, say, wait_until
from plumbline.data.stores import open_store
from plumbline.local.process import MARK, find_by_mark
from plumbline.night.central import CentralStore
from plumbline.schema.verdict import RoundVerdict
from tests.flows.local_stack import RunningStack
from tests.flows.small_suite import small_suite, to_toml

__all__ = ["DRILLS", "command_ended"]


def two_rounds(stack: RunningStack) -> None:
    """Two rounds of a suite at once: the second waits for the first, and both pass."""
    path = stack.deploy()
    first = stack.start_deployed(path, stack.suite, f"{time.strftime('%Y%m%d-%H%M%S')}-first")
    first.until("aws", "trains")
    second = stack.start_deployed(path, stack.suite, f"{time.strftime('%Y%m%d-%H%M%S')}-second")
    second.until_said("waiting for a different round")
    expect(not first.over, "the second round waits while the first one runs")
    expect_pass(stack, first)
    second.waited_seconds = first.took + 60.0  # Prefect tries again after 30 s
    expect_pass(stack, second)


def second_round_refused(stack: RunningStack) -> None:
    """With `overlap = "refuse"`, Prefect cancels the second round: the command ends inconclusive."""
    suite = small_suite(stack.stack.state, "drill-refuse", steps=150).replace(dispatch={"overlap": "refuse"})
    path = stack.deploy(suite)
    first = stack.start_deployed(path, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-first")
    first.until("aws", "trains")
    second = stack.start_deployed(path, suite, f"{time.strftime('%Y%m%d-%H%M%S')}-second")
    code = second.end(90)
    expect(code == 3, f"exit code 3 (is {code}): {second.lines[-1]}")
    with open_client(stack) as client:
        state = read_controller_run(client, second).state
    expect(state is not None and state.is_cancelled(), f"the second round's flow run is cancelled: {state}")
    expect_no_leftovers(stack, second.round_id)
    expect_pass(stack, first)


def schedule_fires(stack: RunningStack) -> None:
    """A cron of one minute starts a round through the deployment."""
    suite = small_suite(stack.stack.state, "drill-nightly").replace(schedule={"cron": "* * * * *"})
    central, began = CentralStore(open_store(suite.store)), time.monotonic()
    stack.deploy(suite)
    try:
        wait_until(lambda: bool(_rounds(central, suite.name)), "a scheduled round has a verdict", 240)
    finally:
        stack.deploy(suite.replace(schedule=None))
    result = _rounds(central, suite.name)[0]
    expect(result.verdict == "pass", f"the scheduled round {result.round} passes: {result.notes}")
    say(f"{time.monotonic() - began:.0f} s from the deployment to the verdict")
    with open_client(stack) as client:
        deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
        expect(not deployed.schedules, "deployed without a schedule, it has none")


def _rounds(central: CentralStore, suite: str) -> list[RoundVerdict]:
    return [central.get_round(*name) for name in central.list_rounds(suite)]


def command_ended(state: Path, number: signal.Signals) -> None:
    """End `plumbline run` itself during its round: no process of its stack is left."""
    suite = state / "suite.toml"
    # Long enough that the trainings still run when the command has shown them.
    content = small_suite(state, steps=200).model_dump(mode="json", exclude_none=True)
    suite.write_text(to_toml(content), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", "run", str(suite), "--state", str(state)]
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    mark, said = "", []
    for line in child.stderr or ():
        said.append(line.rstrip())
        if "trains probe" in line:
            mark = _mark_below(child.pid)
            child.send_signal(number)
            break
    child.communicate(timeout=120)
    expect(bool(mark), f"its trainings ran: {said[-3:]}")
    wait_until(lambda: not find_by_mark(mark), "no process of the stack is left", 30)
    expect(True, f"{number.name}: exit code {child.returncode}, no process left")
    if number is not signal.SIGKILL:
        expect(child.returncode == 3, f"exit code 3 (is {child.returncode})")


def _mark_below(pid: int) -> str:
    for entry in Path("/proc").glob("[0-9]*"):
        if read_ppid(int(entry.name)) != pid:
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for part in variables:
            if part.startswith(f"{MARK}=".encode()):
                return part.decode().partition("=")[2]
    return ""


DRILLS = (two_rounds, second_round_refused, schedule_fires)
