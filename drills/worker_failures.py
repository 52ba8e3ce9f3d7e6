"""Workers, flow runs and trainings that die, and platforms without a worker."""

from __future__ import annotations

import os
import signal
import time

from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling, Crashed

from drills.alerted_rounds import alerted_round, alerted_suite, expect_retried
from drills.expectations import expect_pass, expect_settled, open_client, read_trainings
from drills.processes import TRAINER, kill_machine, parent, terminate_machine
from drills.transcript import expect, say
from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.schema.suite import Suite
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS"]

_SHUTDOWN_SECONDS = 30.0
"""Between a shutdown's SIGTERM and SIGKILL."""


def _long_suite(stack: RunningStack, name: str = "drill-long") -> Suite:
    """Return a suite with trainings long enough to be seen running."""
    return small_suite(stack.stack.state, name, steps=150)


def worker_killed_before(stack: RunningStack) -> None:
    """The worker is killed before it takes the run."""
    stack.kill("worker start", "--pool aws-local", number=signal.SIGSTOP)
    round_ = stack.start_round()
    round_.until("aws", "waits for a worker")
    stack.kill("worker start", "--pool aws-local")
    expect_pass(stack, round_)


def worker_killed_during(stack: RunningStack) -> None:
    """The worker is killed during the training; its flow run continues and publishes the record."""
    round_ = stack.start_round(_long_suite(stack))
    round_.until("aws", "trains probe")
    stack.kill("worker start", "--pool aws-local")
    expect_pass(stack, round_)


def _until_recorded(stack: RunningStack, name: str) -> tuple[RunningRound, int]:
    """Return a round whose record of aws has just been completed, and the flow run's process."""
    suite = small_suite(stack.stack.state, name, outbox=f"file://{stack.stack.state}/{name}/{{platform}}")
    round_ = stack.start_round(suite)
    (trainer, *_) = stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
    child = parent(trainer)
    outbox, deadline = open_store(suite.platforms["aws"].outbox), time.monotonic() + 90
    while not CentralStore(outbox).has_record(round_.record("aws", 0)):
        if time.monotonic() > deadline:
            raise AssertionError("no record within 90 s")
        time.sleep(0.002)
    return round_, child


def worker_killed_after(stack: RunningStack) -> None:
    """The worker is killed once the record is written, before its flow run has ended."""
    round_, _ = _until_recorded(stack, "drill-after")
    stack.kill("worker start", "--pool aws-local")
    expect_pass(stack, round_)


def machine_killed_after(stack: RunningStack) -> None:
    """Worker and flow run are killed after the record is written: the record counts."""
    round_, _ = _until_recorded(stack, "drill-after-both")
    kill_machine(stack, "aws")
    verdict = expect_pass(
        stack, round_, notes="the run's record is complete, though Prefect has not seen the run's end"
    )
    records = verdict["platforms"]["aws"]["records"]
    expect(records == [round_.record("aws", 0)], "the first attempt's record counts")


def flow_run_killed(stack: RunningStack) -> None:
    """The flow run's process is killed: its trainer ends too, and the second attempt succeeds."""
    round_ = stack.start_round()
    trainer = stack.until_running(TRAINER, "--platform aws")
    os.kill(parent(trainer[0]), signal.SIGKILL)
    expect_pass(stack, round_, notes="attempt 1 failed")


def machine_killed(stack: RunningStack) -> None:
    """Worker and flow run are killed: missing progress ends the attempt before its deadline."""
    round_ = stack.start_round(small_suite(stack.stack.state, "drill-silent", run_seconds=240))
    stack.until_running(TRAINER, "--platform aws")
    kill_machine(stack, "aws")
    expect_pass(stack, round_, notes="attempt 1 failed")


def trainer_killed(stack: RunningStack) -> None:
    """The training alone is killed: a failure of infrastructure, so there is a second attempt."""
    round_ = stack.start_round()
    stack.until_running(TRAINER, "--platform aws")
    stack.kill(TRAINER, "--platform aws")
    expect_pass(stack, round_, notes="attempt 1 failed")


def training_terminated(stack: RunningStack) -> None:
    """The training alone gets SIGTERM, as at a spot machine's end: it writes a record, and a second attempt passes."""
    place = f"file://{stack.stack.state}/drill-terminated/{{platform}}"
    suite = alerted_suite(stack, "drill-terminated", 131, steps=150, outbox=place, retries=2)
    outbox = suite.platforms["aws"].outbox
    with alerted_round(stack, suite) as (round_, hook):
        round_.until("aws", "trains probe")
        stack.kill(TRAINER, "--platform aws", number=signal.SIGTERM)
        say("the training of aws gets SIGTERM")
        expect_retried(stack, round_, hook, "stopped on request")
    records = [round_.record("aws", attempt) for attempt in (0, 1)]
    left = [record for record in records if CentralStore(open_store(outbox)).has_record(record)]
    expect(left == records, f"the outbox has the record of both attempts: {left}")


def machine_terminated(stack: RunningStack) -> None:
    """Worker, flow run and training get SIGTERM together, as at a machine's shutdown: a new worker's attempt passes.

    Prefect's worker kills its flow runs as it ends, so that nothing reports the end: missing progress does.
    """
    suite = alerted_suite(stack, "drill-shutdown", 132, steps=150, retries=2)
    with alerted_round(stack, suite) as (round_, hook):
        round_.until("aws", "trains probe")
        terminate_machine(stack, "aws", _SHUTDOWN_SECONDS)
        say("the machine of aws is shut down")
        expect_retried(stack, round_, hook, "reported no progress")


def container_terminated(stack: RunningStack) -> None:
    """Flow run and training get SIGTERM, as at the end of a pod on a spot machine: the next attempt passes."""
    suite = alerted_suite(stack, "drill-evicted", 133, steps=150, retries=2)
    with alerted_round(stack, suite) as (round_, hook):
        round_.until("aws", "trains probe")
        (trainer, *_) = stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
        for pid in (parent(trainer), trainer):
            os.kill(pid, signal.SIGTERM)
        say("flow run and training of aws get SIGTERM")
        expect_retried(stack, round_, hook, "termination signal")


def pending_lost(stack: RunningStack) -> None:
    """The worker dies between PENDING and RUNNING: the run is retried after the start deadline."""
    verdict = _lose_pending(stack, "drill-pending", retries=1)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    notes = verdict["platforms"]["aws"]["notes"]
    expect(
        any("a worker claimed the run and did not start it" in note["text"] for note in notes),
        f"a note says why: {notes}",
    )


def pending_lost_for_good(stack: RunningStack) -> None:
    """The same without a retry: the platform is unavailable, and the round inconclusive."""
    verdict = _lose_pending(stack, "drill-pending-once", retries=0)
    expect(verdict["verdict"] == "inconclusive", f"inconclusive (is {verdict['verdict']})")
    reason = verdict["platforms"]["aws"]["unavailable"]
    expect("a worker claimed the run and did not start it within 40 s" in reason, f"the reason: {reason}")
    expect(verdict["platforms"]["azure"]["verdict"] == "pass", "the other platform passes")


def _lose_pending(stack: RunningStack, name: str, retries: int) -> dict:
    suite = small_suite(stack.stack.state, name, retries=retries)
    path = stack.deploy(suite)
    with stack.held():
        round_ = stack.start_deployed(path, suite)
        with open_client(stack) as client:
            deadline = time.monotonic() + 90
            while not (runs := read_trainings(client, round_.round_id, "platform:aws")) or not _is_pending(runs[0]):
                if time.monotonic() > deadline:
                    raise AssertionError("the training was never pending")
                time.sleep(0.02)
            kill_machine(stack, "aws")
            time.sleep(1)
            state = client.read_flow_run(runs[0].id).state
            expect(state is not None and state.is_pending(), f"its machine is killed, and Prefect says {state}")
    verdict = round_.verdict()
    expect_settled(stack, round_, verdict)
    return verdict


def _is_pending(run) -> bool:
    return run.state is not None and run.state.type is StateType.PENDING


def crashed_then_completed(stack: RunningStack) -> None:
    """Prefect calls a training crashed that lives and completes (PrefectHQ/prefect 16429): one record counts."""
    round_ = stack.start_round(_long_suite(stack, "drill-16429"))
    round_.until("aws", "trains probe")
    with open_client(stack) as client:
        (run,) = read_trainings(client, round_.round_id, "platform:aws")
        client.set_flow_run_state(run.id, Crashed(message="the drill says so"), force=True)
    say("Prefect calls the training crashed while it runs")
    verdict = expect_pass(stack, round_)
    records = verdict["platforms"]["aws"]["records"]
    expect(len(records) == 1, f"one record counts: {records}; notes: {verdict['platforms']['aws']['notes']}")


def no_worker(stack: RunningStack) -> None:
    """A platform has no worker: it is unavailable, the others are judged."""
    suite = small_suite(stack.stack.state, "drill-none", ("aws", "azure", "onprem"))
    round_ = stack.start_round(suite)
    verdict = round_.verdict()
    absent = verdict["platforms"]["onprem"]
    expect(verdict["verdict"] == "inconclusive", f"a missing platform is no pass: inconclusive ({verdict['notes']})")
    judged = {name: platform["verdict"] for name, platform in verdict["platforms"].items() if name != "onprem"}
    expect(set(judged.values()) == {"pass"}, f"the other platforms pass: {judged}")
    expect(absent["verdict"] == "inconclusive", "the platform without a worker is inconclusive, not drift")
    expect("no worker came online" in absent["unavailable"], f"the reason: {absent['unavailable']}")
    expect_settled(stack, round_, verdict)


def late_worker(stack: RunningStack) -> None:
    """A worker starts after the round has begun."""
    suite = small_suite(stack.stack.state, "drill-late", ("aws", "azure", "onprem"))
    round_ = stack.start_round(suite)
    round_.until("aws", "")
    time.sleep(5)
    stack.start_worker("onprem")
    verdict = expect_pass(stack, round_, platform="onprem")
    expect(not verdict["platforms"]["onprem"]["unavailable"], "the late platform is judged")
    stack.stop_worker("onprem")


def training_hangs(stack: RunningStack) -> None:
    """A training hangs: it is cancelled at its deadline, and the round is inconclusive."""
    suite = small_suite(stack.stack.state, "drill-hang", run_seconds=25)
    round_ = stack.start_round(suite)
    stack.until_running(TRAINER, "--platform aws")
    stack.kill(TRAINER, "--platform aws", number=signal.SIGSTOP)
    verdict = round_.verdict()
    expect(verdict["verdict"] == "inconclusive", "inconclusive: one of two platforms is below the quorum")
    reason = verdict["platforms"]["aws"]["unavailable"]
    expect("took longer than 25 s" in reason, f"the reason: {reason}")
    expect_settled(stack, round_, verdict)


def training_cancelled(stack: RunningStack) -> None:
    """A person cancels a training in the UI."""
    round_ = stack.start_round(_long_suite(stack))
    round_.until("aws", "trains probe")
    with open_client(stack) as client:
        (run,) = read_trainings(client, round_.round_id, "platform:aws")
        client.set_flow_run_state(run.id, Cancelling())
    verdict = round_.verdict()
    reason = verdict["platforms"]["aws"]["unavailable"]
    expect(verdict["verdict"] == "inconclusive", "inconclusive, never drift")
    expect("cancelled" in reason, f"the reason: {reason}")
    expect_settled(stack, round_, verdict)


DRILLS = (
    worker_killed_before,
    worker_killed_during,
    worker_killed_after,
    machine_killed_after,
    flow_run_killed,
    machine_killed,
    trainer_killed,
    training_terminated,
    machine_terminated,
    container_terminated,
    pending_lost,
    pending_lost_for_good,
    crashed_then_completed,
    no_worker,
    late_worker,
    training_hangs,
    training_cancelled,
)
