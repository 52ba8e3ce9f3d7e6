"""Twenty platforms and five random failures a night, by seed.

A stock Prefect server on PostgreSQL, a controllers' worker, and for each platform a worker that starts real flow run
processes. Each night is a round of the deployed suite. The trainer alone is a stub (`tests/flows/stub_trainer`): it
delivers a copy of one real record; on some nights one platform delivers the record of a real training with a fault.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drills.expectations import expect_settled
from drills.fleet_failures import ON_A_PLATFORM, ON_THE_ROUND
from drills.fleet_night import LOOK_SECONDS, FleetNight
from drills.server_failures import controllers_with_clock
from drills.transcript import expect, say
from plumbline.night.prepare import prepare
from plumbline.schema.suite import Suite
from tests.flows.local_stack import RunningStack, running_stack
from tests.flows.small_suite import small_suite
from tests.flows.stubs import model_record

__all__ = ["fleet", "run_night"]

PLATFORMS = 20
FAILURES = 5
_ROOT = Path(__file__).resolve().parents[1]
_NIGHT_SECONDS = 480.0
_STRIKES_FIRST = ("worker killed before", "no worker", "late worker")
_LOST = {"no worker": "worker", "hangs": "took longer than 60 s", "cancelled": "cancelled"}
"""Failures after which a platform has no record, with a word of the reason."""


def fleet_suite(state: Path) -> Suite:
    """Return a suite of twenty platforms, each with its own work pool and worker."""
    base = small_suite(state, "fleet", ("onprem",)).model_dump(mode="json", exclude_none=True)
    platform = {
        "data": f"file://{state}/data",
        "start_seconds": 120, "run_seconds": 60, "retries": 2,
    }  # fmt: skip
    names = [f"p{number:02}" for number in range(PLATFORMS)]
    environment = {
        "STUB": str(state / "stub"), "PYTHONPATH": f"{{root}}/tests/flows/stub_trainer:{_ROOT}",
        # Twenty workers poll one server on two cores.
        "PREFECT_WORKER_QUERY_SECONDS": "3", "PREFECT_WORKER_HEARTBEAT_SECONDS": "10",
    }  # fmt: skip
    content = {
        **base,
        "reference": names[0],
        "dispatch": {"quorum": 10, "experiments": 0},
        "platforms": {
            name: {**platform, "work_pool": f"{name}-local", "outbox": f"file://{state}/outbox/{name}"}
            for name in names
        },
        "local": {name: {"environment": environment} for name in names},
    }
    return Suite.model_validate(content)


def _make_records(suite: Suite, state: Path) -> None:
    """Train twice: once as specified, and once with a changed activation."""
    spec = prepare(suite, state / "build", lambda _: None)["tiny"]
    data, records = suite.platforms["p00"].data, state / "stub" / "records"
    fault = {"PLUMBLINE_FAULT": "operators.tanh_gelu", "PYTHONPATH": f"{_ROOT / 'bench/faults/site'}:{_ROOT}"}
    for name, environment in (("good", {}), ("drifted", fault)):
        shutil.copytree(
            model_record(spec, data, state / "model" / name, environment), records / name, dirs_exist_ok=True
        )
    (state / "stub" / "hold").mkdir(exist_ok=True)


@contextmanager
def fleet(state: Path) -> Iterator[RunningStack]:
    """Start the twenty platforms, and yield once their workers are online."""
    suite = fleet_suite(state)
    _make_records(suite, state)
    with running_stack(state, suite=suite) as stack:
        yield stack


def run_night(stack: RunningStack, seed: int) -> None:
    """Run one round with five failures, and check each platform's result and the round's verdict."""
    chance = random.Random(seed)
    kinds = chance.sample([*ON_A_PLATFORM, *ON_THE_ROUND], FAILURES)
    names = chance.sample(sorted(stack.suite.platforms), FAILURES)
    struck = dict(zip(names, kinds, strict=True))
    night = FleetNight(stack, seed)
    night.untouched = [name for name in stack.suite.platforms if name not in struck]
    drifted = chance.choice(night.untouched[2:]) if seed % 2 else ""
    say(", ".join(f"{kind} ({name})" if kind in ON_A_PLATFORM else kind for name, kind in struck.items()))
    say(f"{drifted} has drifted" if drifted else "no platform has drifted")
    if drifted:
        shutil.copytree(night.stub / "records" / "drifted", night.stub / "records" / drifted)
    try:
        with ExitStack() as clock:
            if "clock jumps" in kinds:
                night.clock = clock.enter_context(controllers_with_clock(stack))
            _play(night, struck)
            _judge(night, {name: kind for name, kind in struck.items() if kind in _LOST}, drifted)
    finally:
        shutil.rmtree(night.stub / "records" / drifted if drifted else night.stub / "none", ignore_errors=True)
        for path in (night.stub / "hold").iterdir():
            path.unlink()
        for name in stack.suite.platforms:
            if name not in stack.stack._workers:
                stack.start_worker(name)


def _play(night: FleetNight, struck: dict[str, str]) -> None:
    """Start the round, advance every failure step by step, and wait for the end."""
    running = {f"{kind} ({name})": (ON_A_PLATFORM | ON_THE_ROUND)[kind](night, name) for name, kind in struck.items()}
    for name in [name for name, kind in struck.items() if kind in _STRIKES_FIRST]:
        next(running[f"{struck[name]} ({name})"], None)
    night.start()
    deadline = time.monotonic() + _NIGHT_SECONDS
    while night.round is None or not night.round.over:
        for label, steps in list(running.items()):
            if next(steps, label) is not None:
                del running[label]
        if time.monotonic() > deadline:
            raise AssertionError(f"the night did not end; failures to come: {sorted(running)}")
        time.sleep(LOOK_SECONDS)
    expect(not running, f"every failure has struck {sorted(running) or ''}".strip())


def _judge(night: FleetNight, lost: dict[str, str], drifted: str) -> None:
    assert night.round is not None
    verdict = night.round.verdict()
    results = verdict["platforms"]
    wrong = []
    for name, result in results.items():
        expected = "inconclusive" if name in lost else "drift" if name == drifted else "pass"
        reason = result["unavailable"]
        if (
            result["verdict"] != expected
            or bool(reason) != (name in lost)
            or (reason and _LOST[lost[name]] not in reason)
        ):
            wrong.append(f"{name} should be {expected}, is {result['verdict']} {reason} {result['notes']}")
    expect(not wrong, f"{len(results)} platforms, each with the right result {'; '.join(wrong)}".strip())
    # A platform without a record is no pass of the round.
    expected = "drift" if drifted else "inconclusive" if lost else "pass"
    expect(verdict["verdict"] == expected, f"the round's verdict is {expected} (is {verdict['verdict']})")
    for name, result in results.items():
        for note in result["notes"]:
            if note["code"] in ("attempt", "reference"):
                say(f"{name}: {note['text']}")
    if night.second is not None:
        night.second.waited_seconds = night.round.took + 60.0
        night.round.waited_seconds = 240.0  # a controller that was killed then waits for the second round
    expect_settled(night.stack, night.round, verdict)
    if night.second is not None:
        second = night.second.verdict(300)
        # Its two platforms have no failures.
        expect(second["verdict"] == "pass", f"the second round is pass (is {second.get('notes', second)})")
        expect_settled(night.stack, night.second, second)
