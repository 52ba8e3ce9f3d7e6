"""Twenty simulated platforms, and five failures at random in each night, by seed.

A real Prefect server, a real controller, and for each platform a real worker process of its own, which starts a real
flow run process. The server keeps its state in PostgreSQL, as it should with so many workers: on SQLite it hung for a
minute at a time from the first dispatch on. The trainer alone is a stub (`tests/flows/stub_trainer`): it delivers a
copy of one real record, or on some nights, for one platform, of the record of a real training with a fault in it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from httpx import HTTPError
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from plumbline.bundles import has_record
from plumbline.localstack import postgres
from plumbline.prepare import prepare
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from tests.flows.drill.checks import TRAINER, parent, server, settled
from tests.flows.drill.servers import build_clock_jump, move_clock
from tests.flows.drill.telling import expect, say
from tests.flows.ground import Follower, Ground, ground, small_suite
from tests.flows.stubs import model_record

__all__ = ["fleet", "one_night"]

PLATFORMS = 20
FAILURES = 5
_ROOT = Path(__file__).resolve().parents[3]
_LOOK_SECONDS = 0.1
_NIGHT_SECONDS = 480.0

Course = Iterator[None]
"""What a failure does, step by step; between two steps the others have their turn."""


def fleet_suite(state: Path) -> Suite:
    """Twenty platforms on one file store, each with a work pool and a worker of its own."""
    base = small_suite(state, "fleet", ("onprem",)).model_dump(mode="json", exclude_none=True)
    platform = {
        "data": f"file://{state}/data", "outbox": f"file://{state}/outbox",
        "start_seconds": 120, "run_seconds": 60, "retries": 2,
    }  # fmt: skip
    names = [f"p{number:02}" for number in range(PLATFORMS)]
    environment = {
        "STUB": str(state / "stub"), "PYTHONPATH": "{root}/tests/flows/stub_trainer",
        # Twenty of them ask one server on two cores.
        "PREFECT_WORKER_QUERY_SECONDS": "3", "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
    }  # fmt: skip
    content = {
        **base,
        "reference": names[0],
        "dispatch": {"quorum": 10, "experiments": 0},
        "platforms": {name: {**platform, "work_pool": f"{name}-local"} for name in names},
        "local": {name: {"environment": environment} for name in names},
    }
    return Suite.model_validate(content)


def _make_records(suite: Suite, state: Path) -> None:
    """Two real trainings: one as it should be, and one with a changed activation."""
    spec = prepare(suite, state / "build", lambda _: None)["tiny"]
    data, records = suite.platforms["p00"].data, state / "stub" / "records"
    fault = {"PLUMBLINE_FAULT": "model.tanh_gelu", "PYTHONPATH": f"{_ROOT / 'tests/faults/site'}:{_ROOT}"}
    for name, environment in (("good", {}), ("drifted", fault)):
        shutil.copytree(
            model_record(spec, data, state / "model" / name, environment), records / name, dirs_exist_ok=True
        )
    (state / "stub" / "hold").mkdir(exist_ok=True)


@contextmanager
def fleet(state: Path) -> Iterator[Ground]:
    """The twenty platforms, their workers online."""
    suite = fleet_suite(state)
    _make_records(suite, state)
    # PostgreSQL runs as a user of its own, and has to get there.
    state.chmod(0o755)
    with ground(state, suite=suite, database="postgresql") as this:
        yield this


class Night:
    """One round of the fleet, and hands on it."""

    def __init__(self, this: Ground, seed: int) -> None:
        self.this = this
        self.stub = this.stack.state / "stub"
        self.round_id = f"{time.strftime('%Y%m%d-%H%M%S')}-fleet{seed}"
        self.clock: Path | None = None
        self.one: Follower | None = None
        self.second: Follower | None = None
        self.server_taken = False
        self.untouched: list[str] = []
        self._trainers: tuple[float, dict[str, int]] = (0.0, {})

    def start(self, prefix: tuple[str, ...] = ()) -> None:
        self.one = self.this.start_round(round_id=self.round_id, prefix=prefix)

    def phase(self, platform: str) -> str:
        return str(self.one.lane(platform)["phase"]) if self.one else ""

    def running(self) -> int:
        return sum(self.phase(name) in ("running", "settling", "done") for name in self.this.suite.platforms)

    def trainer(self, platform: str) -> int | None:
        """The process of a platform's training; looked for a few times a second for all platforms together."""
        now = time.monotonic()
        if now - self._trainers[0] > 3 * _LOOK_SECONDS:
            found = {}
            for pid in self.this.processes(TRAINER, f"--round-id {self.round_id}"):
                with suppress(OSError, ValueError):
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                    found[words[words.index("--platform") + 1]] = pid
            self._trainers = (now, found)
        return self._trainers[1].get(platform)

    def hold(self, platform: str) -> None:
        """Its training does not end by itself."""
        (self.stub / "hold" / platform).touch()

    def kill_worker(self, platform: str) -> None:
        self.this.kill("worker start", f"--pool {platform}-local")


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
            (run,) = client.read_flow_runs(flow_run_filter=wanted)
            client.set_flow_run_state(run.id, Cancelling())
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
    database = postgres.connection_url(night.this.stack.postgres_port or 0).replace("+asyncpg", "")
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
_LOST = {
    "no worker": "worker", "hangs": "ran longer than 60 s", "cancelled": "cancelled",
}  # fmt: skip
"""The failures after which a platform has no record, and a word of the reason."""


def one_night(this: Ground, seed: int) -> None:
    """One round with five failures; each platform's result is what it should be, and so is the round's."""
    chance = random.Random(seed)
    kinds = chance.sample([*ON_A_PLATFORM, *ON_THE_ROUND], FAILURES)
    names = chance.sample(sorted(this.suite.platforms), FAILURES)
    struck = dict(zip(names, kinds, strict=True))
    night = Night(this, seed)
    night.untouched = [name for name in this.suite.platforms if name not in struck]
    drifted = chance.choice(night.untouched[2:]) if seed % 2 else ""
    say(", ".join(f"{kind} ({name})" if kind in ON_A_PLATFORM else kind for name, kind in struck.items()))
    say(f"{drifted} has drifted" if drifted else "none has drifted")
    if drifted:
        shutil.copytree(night.stub / "records" / "drifted", night.stub / "records" / drifted)
    try:
        _play(night, struck)
        _judge(night, {name: kind for name, kind in struck.items() if kind in _LOST}, drifted)
    finally:
        shutil.rmtree(night.stub / "records" / drifted if drifted else night.stub / "none", ignore_errors=True)
        for path in (night.stub / "hold").iterdir():
            path.unlink()
        for name in this.suite.platforms:
            if name not in this.stack._workers:
                this.start_worker(name)


def _play(night: Night, struck: dict[str, str]) -> None:
    """Start the round, let every failure take its course, and wait for the end."""
    prefix: tuple[str, ...] = ()
    if "clock jumps" in struck.values():
        prefix, night.clock = build_clock_jump(night.this.stack.state)
    courses = {f"{kind} ({name})": (ON_A_PLATFORM | ON_THE_ROUND)[kind](night, name) for name, kind in struck.items()}
    for name in [name for name, kind in struck.items() if kind in ("worker killed before", "no worker", "late worker")]:
        next(courses[f"{struck[name]} ({name})"], None)
    night.start(prefix)
    deadline = time.monotonic() + _NIGHT_SECONDS
    while courses or night.one is None or not night.one.over:
        for label, course in list(courses.items()):
            if next(course, label) is not None:
                del courses[label]
        if night.one is not None and night.one.over and not _is_killed(night.one, courses):
            break
        if time.monotonic() > deadline:
            raise AssertionError(f"the night did not end; still to come: {sorted(courses)}")
        time.sleep(_LOOK_SECONDS)
    expect(not courses, f"every failure has struck {sorted(courses)}")


def _is_killed(one: Follower, courses: dict[str, Course]) -> bool:
    return one.end().killed and any(label.startswith("controller killed") for label in courses)


def _judge(night: Night, lost: dict[str, str], drifted: str) -> None:
    assert night.one is not None
    verdict = night.one.verdict()
    results = verdict["platforms"]
    wrong = []
    for name, result in results.items():
        expected = "inconclusive" if name in lost else "drift" if name == drifted else "pass"
        told = result["unavailable"]
        if result["verdict"] != expected or bool(told) != (name in lost) or (told and _LOST[lost[name]] not in told):
            wrong.append(f"{name} should be {expected}, is {result['verdict']} {told} {result['notes']}")
    expect(not wrong, f"{len(results)} platforms, each with the right result {'; '.join(wrong)}")
    expected = "drift" if drifted else "pass"
    expect(verdict["verdict"] == expected, f"the round's verdict is {expected}, as it should be ({verdict['verdict']})")
    for name, result in results.items():
        for note in result["notes"]:
            if "attempt" in note or "though" in note or "in its place" in note:
                say(f"{name}: {note}")
    settled(night.this, night.one, verdict)
    if night.second is not None:
        night.second.waited_seconds = night.one.took
        second = night.second.verdict(300)
        expect(second["verdict"] == "pass", f"the second round passes: {second['verdict']}")
        settled(night.this, night.second, second)
