"""Twenty simulated platforms, and five failures at random in each night, by seed.

A real Prefect server, a real controller, and for each platform a real worker process of its own, which starts a real
flow run process. The server keeps its state in PostgreSQL, as it must with so many workers: on SQLite it serves only
so many connections at a time. The trainer alone is a stub (`tests/flows/stub_trainer`): it delivers a
copy of one real record, or on some nights, for one platform, of the record of a real training with a fault in it.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plumbline.prepare import prepare
from plumbline.schema.suite import Suite
from tests.flows.drill.checks import settled
from tests.flows.drill.failures import ON_A_PLATFORM, ON_THE_ROUND, Course
from tests.flows.drill.nights import LOOK_SECONDS, Night
from tests.flows.drill.servers import build_clock_jump
from tests.flows.drill.telling import expect, say
from tests.flows.ground import Follower, Ground, ground, small_suite
from tests.flows.stubs import model_record

__all__ = ["fleet", "one_night"]

PLATFORMS = 20
FAILURES = 5
_ROOT = Path(__file__).resolve().parents[3]
_NIGHT_SECONDS = 480.0


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
        time.sleep(LOOK_SECONDS)
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
