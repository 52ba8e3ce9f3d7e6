"""`python -m tests.flows.drill [NAME ...]`: what goes wrong at night, done on purpose, on real servers and workers.

Each drill starts a real round, breaks something, and checks that the round ends with the right verdict, that no
training runs on, and that no record is lost or counted twice.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from plumbline.central import CentralStore
from plumbline.localstack.process import MARK, marked, stop
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tests.flows.ground import Ground, ground, small_suite, to_toml

Drill = Callable[[Ground], None]
_TRAINER = "plumbline.train"


def _say(line: str) -> None:
    print(f"    {line}", flush=True)


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)
    _say(f"ok: {what}")


def _passes(this: Ground, verdict: dict[str, Any], *, notes: str = "", platform: str = "aws") -> None:
    _expect(verdict["verdict"] == "pass", f"verdict pass (it is {verdict['verdict']}: {verdict['notes']})")
    if notes:
        said = verdict["platforms"][platform]["notes"]
        _expect(any(notes in line for line in said), f"a note says {notes!r} ({said})")
    _settled(this, verdict)


def _settled(this: Ground, verdict: dict[str, Any]) -> None:
    """Nothing trains on, and the central store holds each record once."""
    deadline = time.monotonic() + 15
    while this.processes(_TRAINER) and time.monotonic() < deadline:
        time.sleep(0.2)
    _expect(not this.processes(_TRAINER), "no training runs on")
    central = CentralStore(open_store(this.suite.store))
    kept = [name for name in central.list_records() if name.startswith(verdict["round"])]
    judged = [record for one in verdict["platforms"].values() for record in one["records"]]
    _expect(sorted(kept) == sorted(judged), f"the records judged are those kept, each once: {len(kept)}")


def worker_killed_before(this: Ground) -> None:
    """The worker is killed before it takes the run."""
    this.kill("worker start", "--pool aws-local", number=signal.SIGSTOP)
    one = this.start_round()
    one.until("aws", "waiting")
    this.kill("worker start", "--pool aws-local")
    _passes(this, one.verdict())


def worker_killed_during(this: Ground) -> None:
    """The worker is killed while it trains; its child runs on and writes the record."""
    one = this.start_round()
    one.until("aws", "running", words="probe")
    this.kill("worker start", "--pool aws-local")
    _passes(this, one.verdict())


def worker_and_child_killed(this: Ground) -> None:
    """Worker and child are killed: nobody tells Prefect, the silence does."""
    one = this.start_round()
    trainer = this.until_running(_TRAINER, "--platform aws")
    os.kill(_parent(trainer[0]), signal.SIGKILL)
    this.kill("worker start", "--pool aws-local")
    _passes(this, one.verdict(), notes="attempt 1 failed")


def worker_killed_after(this: Ground) -> None:
    """The worker is killed once the record is written."""
    one = this.start_round()
    one.until("aws", "settling", seconds=90)
    this.kill("worker start", "--pool aws-local")
    _passes(this, one.verdict())


def child_killed(this: Ground) -> None:
    """The flow run's process alone is killed: its trainer ends with it, and another attempt succeeds."""
    one = this.start_round()
    trainer = this.until_running(_TRAINER, "--platform aws")
    os.kill(_parent(trainer[0]), signal.SIGKILL)
    _passes(this, one.verdict(), notes="attempt 1 failed")


def trainer_killed(this: Ground) -> None:
    """The training alone is killed: infrastructure, so another attempt."""
    one = this.start_round()
    this.until_running(_TRAINER, "--platform aws")
    this.kill(_TRAINER, "--platform aws")
    _passes(this, one.verdict(), notes="attempt 1 failed")


def controller_killed(this: Ground) -> None:
    """The controller is killed, and started again: it finds its children and finishes the same round."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-killed"
    one = this.start_round(round_id=name)
    one.until("aws", "running")
    before = set(this.processes(_TRAINER))
    one.child.process.kill()
    _expect(one.end().event is None, "the controller died without a verdict")
    again = this.start_round(round_id=name)
    verdict = again.verdict()
    _passes(this, verdict)
    _expect(verdict["round"] == name, "it is the same round")
    ran = [record for record in verdict["platforms"]["aws"]["records"] if record.endswith("-0")]
    _expect(len(ran) == 1, f"the first attempt's record counts: {ran} ({len(before)} trainings were under way)")


def controller_ended(this: Ground) -> None:
    """The controller is told to end: it cancels its children first."""
    one = this.start_round()
    this.until_running(_TRAINER, "--platform aws")
    one.child.process.terminate()
    ended = one.end()
    _expect(ended.event is not None and ended.event.get("message") == "interrupted", "it says that it was interrupted")
    deadline = time.monotonic() + 40
    while this.processes(_TRAINER) and time.monotonic() < deadline:
        time.sleep(0.2)
    _expect(not this.processes(_TRAINER), "no training runs on")


def server_stopped(this: Ground) -> None:
    """The server does not answer for 20 s."""
    one = this.start_round()
    one.until("aws", "running")
    this.kill("prefect server start", number=signal.SIGSTOP)
    pids = this.kill("uvicorn", number=signal.SIGSTOP) if this.processes("uvicorn") else []
    _say("the server is stopped for 20 s")
    time.sleep(20)
    this.kill("prefect server start", number=signal.SIGCONT)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _passes(this, one.verdict())


def server_killed(this: Ground) -> None:
    """The server is killed, and started again."""
    one = this.start_round()
    one.until("aws", "running")
    this.kill("prefect server start")
    _passes(this, one.verdict())


def database_locked(this: Ground) -> None:
    """Somebody holds the database for 15 s."""
    one = this.start_round()
    one.until("aws", "running")
    with sqlite3.connect(this.stack.state / "prefect" / "prefect.db", timeout=10, isolation_level=None) as database:
        database.execute("BEGIN EXCLUSIVE")
        _say("the database is locked for 15 s")
        time.sleep(15)
        database.execute("ROLLBACK")
    database.close()
    _passes(this, one.verdict())


def no_worker(this: Ground) -> None:
    """A platform has no worker at all: it is unavailable, the others are judged."""
    suite = small_suite(this.stack.state, "drill-none", ("aws", "azure", "onprem"), start_seconds=12)
    verdict = this.start_round(suite).verdict()
    absent = verdict["platforms"]["onprem"]
    _expect(verdict["verdict"] == "pass", f"the quorum of two is met: pass ({verdict['notes']})")
    _expect(absent["verdict"] == "inconclusive", "the platform without a worker is inconclusive, not drift")
    _expect("no worker came online" in absent["unavailable"], f"it says why: {absent['unavailable']}")
    _settled(this, verdict)


def late_worker(this: Ground) -> None:
    """A worker comes up after the round has begun."""
    suite = small_suite(this.stack.state, "drill-late", ("aws", "azure", "onprem"))
    one = this.start_round(suite)
    one.until("onprem", "seeking")
    time.sleep(5)
    this.stack.start_workers(["onprem"])
    _passes(this, one.verdict(), platform="onprem")
    this.kill("worker start", "--pool onprem-local", number=signal.SIGTERM)


def training_hangs(this: Ground) -> None:
    """A training hangs: it is ended at its deadline, and the round is inconclusive."""
    suite = small_suite(this.stack.state, "drill-hang", run_seconds=25)
    one = this.start_round(suite)
    this.until_running(_TRAINER, "--platform aws")
    this.kill(_TRAINER, "--platform aws", number=signal.SIGSTOP)
    verdict = one.verdict()
    _expect(verdict["verdict"] == "inconclusive", "inconclusive: one of two platforms is below the quorum")
    why = verdict["platforms"]["aws"]["unavailable"]
    _expect("ran longer than 25 s" in why, f"it says why: {why}")
    _settled(this, verdict)


def cancelled_in_the_ui(this: Ground) -> None:
    """A person cancels a training in the UI."""
    one = this.start_round()
    one.until("aws", "running", words="probe")
    with temporary_settings({PREFECT_API_URL: this.stack.api_url}), get_client(sync_client=True) as client:
        runs = [run for run in client.read_flow_runs(limit=20) if run.state and run.state.is_running()]
        run = next(run for run in runs if run.name.startswith("aws "))
        client.set_flow_run_state(run.id, Cancelling())
    verdict = one.verdict()
    why = verdict["platforms"]["aws"]["unavailable"]
    _expect(verdict["verdict"] == "inconclusive", "inconclusive, never drift")
    _expect("cancelled" in why, f"it says why: {why}")
    _settled(this, verdict)


def two_rounds(this: Ground) -> None:
    """Two rounds at once: the second waits for the first, and both end well; a suite may refuse instead."""
    first = this.start_round()
    first.until("aws", "running")
    second = this.start_round()
    second.until_said("waits for")
    refusing = this.suite.replace(dispatch={"overlap": "refuse"})
    third = this.start_round(refusing).end()
    _expect(third.event is not None and third.event.get("exit_code") == 3, "the third is refused, with exit code 3")
    _passes(this, first.verdict())
    _passes(this, second.verdict())


def clock_jumps(this: Ground) -> None:
    """The controller's wall clock jumps an hour ahead, then two hours back: deadlines are not moved."""
    library, jump = this.stack.state / "clock_jump.so", this.stack.state / "clock_jump"
    source = Path(__file__).with_name("clock_jump.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    jump.write_bytes(struct.pack("d", 0.0))
    one = this.start_round(prefix=("env", f"LD_PRELOAD={library}", f"CLOCK_JUMP={jump}"))
    one.until("aws", "running")
    for seconds in (3600.0, -3600.0):
        # In place: the controller sees the file's page.
        with jump.open("r+b") as file:
            file.write(struct.pack("d", seconds))
        _say(f"the controller's clock is {seconds:+.0f} s off")
        time.sleep(3)
    _passes(this, one.verdict())


def schedule_fires(this: Ground) -> None:
    """A schedule of one minute starts a round, through the deployments of `plumbline deploy`."""
    suite = small_suite(this.stack.state, "drill-nightly").replace(schedule={"cron": "* * * * *"})
    path = this.stack.state / "nightly.toml"
    _deploy(this, suite, path, "--publish")
    worker = this.stack.start_controller_worker("plumbline")
    central, began = CentralStore(open_store(suite.store)), time.monotonic()
    try:
        while not (found := [one for one in _rounds(central) if one.suite == suite.name]):
            _expect_soon(began, 200, "the schedule fires")
    finally:
        _deploy(this, suite.replace(schedule=None), path)
        stop([worker], grace_seconds=30)
    _expect(found[0].verdict == "pass", f"the scheduled round {found[0].round} passes: {found[0].notes}")
    _say(f"{time.monotonic() - began:.0f} s from the deployment to the verdict")


def _deploy(this: Ground, suite: Suite, path: Path, *options: str) -> None:
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", "deploy", str(path), "--state", str(this.stack.state), *options]
    done = subprocess.run(command, env=this.stack.environment(), capture_output=True, text=True, check=False)
    _expect(done.returncode == 0, f"plumbline deploy {' '.join(options)}: {(done.stdout + done.stderr).strip()[-300:]}")


def _rounds(central: CentralStore) -> list[RoundVerdict]:
    return [central.get_round(name) for name in central.list_rounds()]


def _expect_soon(began: float, seconds: float, what: str) -> None:
    if time.monotonic() - began > seconds:
        raise AssertionError(f"{what}: not within {seconds:g} s")
    time.sleep(1)


DRILLS: tuple[Drill, ...] = (
    worker_killed_before,
    worker_killed_during,
    worker_killed_after,
    child_killed,
    worker_and_child_killed,
    trainer_killed,
    controller_killed,
    controller_ended,
    server_stopped,
    server_killed,
    database_locked,
    no_worker,
    late_worker,
    training_hangs,
    cancelled_in_the_ui,
    two_rounds,
    clock_jumps,
    schedule_fires,
)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def _command_ended(state: Path, number: signal.Signals) -> None:
    """`plumbline run` itself is ended in mid-round: nothing of its stack is left."""
    suite = state / "suite.toml"
    suite.write_text(to_toml(small_suite(state).model_dump(mode="json", exclude_none=True)), encoding="utf-8")
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
    _expect(bool(mark) and not marked(mark), f"{number.name}: exit code {child.returncode}, no process is left over")


def _mark_below(pid: int) -> str:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if _parent(int(entry.name)) == pid:
                for part in (entry / "environ").read_bytes().split(b"\0"):
                    if part.startswith(f"{MARK}=".encode()):
                        return part.decode().partition("=")[2]
        except OSError:
            continue
    return ""


def main(names: list[str]) -> int:
    """Run the drills, all or those named; the number that failed."""
    failed: list[str] = []
    state = Path(tempfile.mkdtemp(prefix="plumbline-drill-"))
    chosen = [drill for drill in DRILLS if not names or drill.__name__ in names]
    try:
        if chosen:
            with ground(state, ("aws", "azure", "onprem"), without=("onprem",)) as this:
                this.suite = small_suite(state)
                for drill in chosen:
                    if not _run(drill.__name__, partial(drill, this), failed):
                        this.clear()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if not names or "command_ended" in names:
                _run(f"command_ended {number.name}", partial(_command_ended, state, number), failed)
    finally:
        shutil.rmtree(state, ignore_errors=True)
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "every drill went as it should", flush=True)
    return len(failed)


def _run(name: str, drill: Callable[[], None], failed: list[str]) -> bool:
    print(f"{name}", flush=True)
    began = time.monotonic()
    try:
        drill()
    except AssertionError as error:
        failed.append(name)
        _say(f"FAILED: {error}")
    _say(f"{time.monotonic() - began:.1f} s")
    return name not in failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
