"""Workers, flow runs and trainings that die, and a platform that has no worker."""

from __future__ import annotations

import os
import signal
import time

from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.states import Cancelling

from plumbline.bundles import has_record
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from tests.flows.drill.checks import TRAINER, parent, passes, server, settled
from tests.flows.drill.telling import expect
from tests.flows.ground import Follower, Ground, small_suite

__all__ = ["DRILLS"]


def _long(this: Ground) -> Suite:
    """Trainings that are still under way when the controller has seen that they are."""
    return small_suite(this.stack.state, "drill-long", steps=150)


def worker_killed_before(this: Ground) -> None:
    """The worker is killed before it takes the run."""
    this.kill("worker start", "--pool aws-local", number=signal.SIGSTOP)
    one = this.start_round()
    one.until("aws", "waiting")
    this.kill("worker start", "--pool aws-local")
    passes(this, one)


def worker_killed_during(this: Ground) -> None:
    """The worker is killed while it trains; its child runs on and writes the record."""
    one = this.start_round(_long(this))
    one.until("aws", "running", words="probe")
    this.kill("worker start", "--pool aws-local")
    passes(this, one)


def _until_recorded(this: Ground, name: str) -> tuple[Follower, int]:
    """A round on file stores, at the moment at which the record of aws is complete; its flow run's process lives."""
    suite = small_suite(this.stack.state, name, outbox=f"file://{this.stack.state}/{name}")
    one = this.start_round(suite)
    (trainer, *_) = this.until_running(TRAINER, "--platform aws", f"--round-id {one.round_id}")
    child = parent(trainer)
    outbox, deadline = open_store(suite.platforms["aws"].outbox), time.monotonic() + 90
    while not has_record(outbox, f"{one.round_id}-aws-tiny-0"):
        if time.monotonic() > deadline:
            raise AssertionError("the record never came")
        time.sleep(0.002)
    return one, child


def worker_killed_after(this: Ground) -> None:
    """The worker is killed once the record is written, before its flow run has ended."""
    one, _ = _until_recorded(this, "drill-after")
    this.kill("worker start", "--pool aws-local")
    passes(this, one)


def worker_and_child_killed_after(this: Ground) -> None:
    """Worker and child are killed once the record is written: Prefect never hears of the end, and the record counts."""
    one, child = _until_recorded(this, "drill-after-both")
    os.kill(child, signal.SIGKILL)
    this.kill("worker start", "--pool aws-local")
    verdict = passes(this, one, notes="the run's record is complete, though Prefect has not seen its end")
    expect(
        verdict["platforms"]["aws"]["records"] == [f"{one.round_id}-aws-tiny-0"], "the first attempt's record counts"
    )


def child_killed(this: Ground) -> None:
    """The flow run's process alone is killed: its trainer ends with it, and another attempt succeeds."""
    one = this.start_round()
    trainer = this.until_running(TRAINER, "--platform aws")
    os.kill(parent(trainer[0]), signal.SIGKILL)
    passes(this, one, notes="attempt 1 failed")


def worker_and_child_killed(this: Ground) -> None:
    """Worker and child are killed: nobody tells Prefect, the silence does, long before the training's own deadline."""
    one = this.start_round(small_suite(this.stack.state, "drill-silent", run_seconds=240))
    trainer = this.until_running(TRAINER, "--platform aws")
    os.kill(parent(trainer[0]), signal.SIGKILL)
    this.kill("worker start", "--pool aws-local")
    passes(this, one, notes="attempt 1 failed")


def trainer_killed(this: Ground) -> None:
    """The training alone is killed: infrastructure, so another attempt."""
    one = this.start_round()
    this.until_running(TRAINER, "--platform aws")
    this.kill(TRAINER, "--platform aws")
    passes(this, one, notes="attempt 1 failed")


def no_worker(this: Ground) -> None:
    """A platform has no worker at all: it is unavailable, the others are judged."""
    suite = small_suite(this.stack.state, "drill-none", ("aws", "azure", "onprem"), start_seconds=12)
    one = this.start_round(suite)
    verdict = one.verdict()
    absent = verdict["platforms"]["onprem"]
    expect(verdict["verdict"] == "pass", f"the quorum of two is met: pass ({verdict['notes']})")
    expect(absent["verdict"] == "inconclusive", "the platform without a worker is inconclusive, not drift")
    expect("no worker came online" in absent["unavailable"], f"it says why: {absent['unavailable']}")
    settled(this, one, verdict)


def late_worker(this: Ground) -> None:
    """A worker comes up after the round has begun."""
    suite = small_suite(this.stack.state, "drill-late", ("aws", "azure", "onprem"))
    one = this.start_round(suite)
    one.until("onprem", "seeking")
    time.sleep(5)
    this.start_worker("onprem")
    verdict = passes(this, one, platform="onprem")
    expect(not verdict["platforms"]["onprem"]["unavailable"], "the late platform is judged")
    this.stop_worker("onprem")


def training_hangs(this: Ground) -> None:
    """A training hangs: it is ended at its deadline, and the round is inconclusive."""
    suite = small_suite(this.stack.state, "drill-hang", run_seconds=25)
    one = this.start_round(suite)
    this.until_running(TRAINER, "--platform aws")
    this.kill(TRAINER, "--platform aws", number=signal.SIGSTOP)
    verdict = one.verdict()
    expect(verdict["verdict"] == "inconclusive", "inconclusive: one of two platforms is below the quorum")
    why = verdict["platforms"]["aws"]["unavailable"]
    expect("ran longer than 25 s" in why, f"it says why: {why}")
    settled(this, one, verdict)


def cancelled_in_the_ui(this: Ground) -> None:
    """A person cancels a training in the UI."""
    one = this.start_round(_long(this))
    one.until("aws", "running", words="probe")
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{one.round_id}", "platform:aws"]))
    with server(this) as client:
        (run,) = client.read_flow_runs(flow_run_filter=wanted)
        client.set_flow_run_state(run.id, Cancelling())
    verdict = one.verdict()
    why = verdict["platforms"]["aws"]["unavailable"]
    expect(verdict["verdict"] == "inconclusive", "inconclusive, never drift")
    expect("cancelled" in why, f"it says why: {why}")
    settled(this, one, verdict)


DRILLS = (
    worker_killed_before,
    worker_killed_during,
    worker_killed_after,
    worker_and_child_killed_after,
    child_killed,
    worker_and_child_killed,
    trainer_killed,
    no_worker,
    late_worker,
    training_hangs,
    cancelled_in_the_ui,
)
