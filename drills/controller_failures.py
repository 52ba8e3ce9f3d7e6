"""Controllers that die or lose their machine, or that Prefect wrongly calls crashed."""

from __future__ import annotations

import os
import signal
import time

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Cancelling, Crashed

from drills.expectations import expect_no_leftovers, expect_pass, expect_settled, open_client, read_controller_run
from drills.processes import TRAINER, kill_machine
from drills.transcript import expect, say, wait_until
from plumbline.data.stores import open_store
from plumbline.local.stack import CONTROLLERS
from plumbline.night.central import CentralStore
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS"]

_SILENT_SECONDS = 200.0
"""Prefect's heartbeat window of two minutes, and the time in which its automations act."""
_ORPHANED_SECONDS = 120.0
_STARTS = 4


def controller_killed(stack: RunningStack) -> None:
    """The controller is killed: the same round is started again, and finds its trainings."""
    round_ = stack.start_round(small_suite(stack.stack.state, "drill-killed", steps=150))
    round_.until("aws", "trains")
    trainings = set(stack.processes(TRAINER))
    _kill_controller(stack)
    verdict = expect_pass(stack, round_)
    expect(verdict["round"] == round_.round_id, "it is the same round")
    records = [record for platform in verdict["platforms"].values() for record in platform["records"]]
    expect(
        all(record.endswith("-0") for record in records),
        f"the first attempts' records count: {records} ({len(trainings)} trainings were running)",
    )
    expect(_num_starts(stack, round_) == 2, f"its flow run started {_num_starts(stack, round_)} times")


def _kill_controller(stack: RunningStack) -> list[int]:
    pids = stack.controllers()
    expect(bool(pids), "the controller's process runs")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    say("the controller's process is killed with SIGKILL")
    return pids


def _num_starts(stack: RunningStack, round_: RunningRound) -> int:
    with open_client(stack) as client:
        return read_controller_run(client, round_).run_count


def controller_terminated(stack: RunningStack) -> None:
    """The controller gets SIGTERM: it cancels its trainings, and the resumed round trains again."""
    round_ = stack.start_round(small_suite(stack.stack.state, "drill-terminated", steps=150))
    round_.until("aws", "trains")
    pids = stack.controllers()
    expect(bool(pids), "the controller's process runs")
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    say("the controller's process gets SIGTERM")
    expect_pass(stack, round_)


def controllers_machine_gone(stack: RunningStack) -> None:
    """Worker and flow run of the controller are killed: Prefect resumes the round."""
    suite = small_suite(stack.stack.state, "drill-gone", steps=150)
    round_ = stack.start_round(suite)
    round_.until("aws", "trains")
    kill_machine(stack, CONTROLLERS)
    killed_at = time.monotonic()
    say("the controllers' machine is gone")
    with open_client(stack) as client:
        run = read_controller_run(client, round_)
        wait_until(lambda: client.read_flow_run(run.id).run_count > 1, "it is resumed", _SILENT_SECONDS)
        say(f"resumed after {time.monotonic() - killed_at:.0f} s")
        types = [state.type for state in client.read_flow_run_states(run.id)]
        expect(StateType.CRASHED in types, "the automation called it crashed")
    verdict = round_.verdict()
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    expect_settled(stack, round_, verdict, resumes=1)


def controller_lost_while_pending(stack: RunningStack) -> None:
    """The controllers' machine dies between PENDING and RUNNING: the round still starts."""
    suite = small_suite(stack.stack.state, "drill-controller-pending")
    path = stack.deploy(suite)
    with stack.held():
        round_ = stack.start_deployed(path, suite)
        with open_client(stack) as client:
            run = _until_pending(client, round_)
            kill_machine(stack, CONTROLLERS)
            time.sleep(1)
            state = client.read_flow_run(run.id).state
            expect(state is not None and state.is_pending(), f"its machine is killed, and Prefect says {state}")
    verdict = round_.verdict(600)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    expect_settled(stack, round_, verdict, resumes=2)


def _until_pending(client, round_: RunningRound) -> FlowRun:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            run = read_controller_run(client, round_)
        except StopIteration:
            time.sleep(0.02)
            continue
        if run.state is not None and run.state.type is StateType.PENDING:
            return run
        time.sleep(0.02)
    raise AssertionError("the round was never pending")


def controller_crashes_for_good(stack: RunningStack) -> None:
    """The controller is killed at every start: the round and its trainings end without a verdict."""
    suite = small_suite(stack.stack.state, "drill-for-good", run_seconds=400)
    round_ = stack.start_round(suite)
    stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
    stack.until_running(TRAINER, "--platform azure", f"--round-id {round_.round_id}")
    stack.kill(TRAINER, f"--round-id {round_.round_id}", number=signal.SIGSTOP)
    say("both trainings hang")
    for start in range(1, _STARTS + 1):
        wait_until(lambda: bool(stack.controllers()), f"start {start} of the controller")
        time.sleep(1)
        _kill_controller(stack)
        wait_until(lambda: not stack.controllers(), "the killed controller is gone")
    code = round_.end(180)
    expect(code == 3, f"exit code 3 (is {code}): {round_.lines[-1]}")
    expect("crashed" in " ".join(round_.lines[-3:]), "the command says that the controller crashed")
    expect_no_leftovers(stack, round_.round_id, _ORPHANED_SECONDS)


def controllers_gone_for_good(stack: RunningStack) -> None:
    """The controllers' machine does not come back: trainings end within two minutes after Prefect notices."""
    suite = small_suite(stack.stack.state, "drill-no-controller", run_seconds=600)
    round_ = stack.start_round(suite)
    stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
    stack.until_running(TRAINER, "--platform azure", f"--round-id {round_.round_id}")
    stack.kill(TRAINER, f"--round-id {round_.round_id}", number=signal.SIGSTOP)
    say("both trainings hang")
    with stack.held():
        kill_machine(stack, CONTROLLERS)
        stack.stop_worker(CONTROLLERS, signal.SIGKILL)
    say("the controllers' machine is gone for good")
    try:
        with open_client(stack) as client:
            run = read_controller_run(client, round_)
            began = time.monotonic()
            wait_until(
                lambda: StateType.CRASHED in [state.type for state in client.read_flow_run_states(run.id)],
                "the automation calls it crashed", _SILENT_SECONDS,
            )  # fmt: skip
            say(f"called crashed after {time.monotonic() - began:.0f} s")
        expect_no_leftovers(stack, round_.round_id, _ORPHANED_SECONDS)
    finally:
        round_.child.send_signal(signal.SIGINT)
        stack.start_worker(CONTROLLERS)
        stack.until_online(CONTROLLERS)
    expect(round_.end(120) == 3, f"the interrupted command ends with exit code 3: {round_.lines[-1]}")


def controller_called_crashed(stack: RunningStack) -> None:
    """Prefect calls a living controller crashed and starts it again: one verdict, each record once."""
    suite = small_suite(stack.stack.state, "drill-two-controllers", steps=150)
    round_ = stack.start_round(suite)
    round_.until("aws", "trains")
    with open_client(stack) as client:
        run = read_controller_run(client, round_)
        client.set_flow_run_state(run.id, Crashed(message="the drill says so"), force=True)
    say("Prefect calls the controller crashed while it runs")
    verdict = expect_pass(stack, round_)
    rounds = CentralStore(open_store(suite.store)).list_rounds()
    expect(rounds.count((suite.name, verdict["round"])) == 1, "the round is stored once")
    wait_until(lambda: not stack.controllers(), "no controller is left", 60)


def round_cancelled(stack: RunningStack) -> None:
    """A person cancels the round in the UI: its trainings are cancelled, and the command ends."""
    round_ = stack.start_round(small_suite(stack.stack.state, "drill-cancelled", steps=200))
    round_.until("aws", "trains")
    with open_client(stack) as client:
        client.set_flow_run_state(read_controller_run(client, round_).id, Cancelling())
    code = round_.end(120)
    expect(code == 3, f"exit code 3 (is {code}): {round_.lines[-1]}")
    expect_no_leftovers(stack, round_.round_id, 60)


def command_interrupted(stack: RunningStack) -> None:
    """Ctrl-C in `plumbline run --api`: the round and its trainings are cancelled."""
    round_ = stack.start_round(small_suite(stack.stack.state, "drill-interrupted", steps=200))
    stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
    round_.child.send_signal(signal.SIGINT)
    code = round_.end(120)
    expect(code == 3, f"exit code 3 (is {code}): {round_.lines[-1]}")
    expect_no_leftovers(stack, round_.round_id, 60)
    with open_client(stack) as client:
        state = read_controller_run(client, round_).state
    expect(state is not None and state.is_final(), f"the round's flow run has ended: {state}")


DRILLS = (
    controller_killed,
    controller_terminated,
    controllers_machine_gone,
    controller_lost_while_pending,
    controller_crashes_for_good,
    controllers_gone_for_good,
    controller_called_crashed,
    round_cancelled,
    command_interrupted,
)
