"""A platform that becomes slow: measured once more before it is called drift, and named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from plumbline.schema.suite import Suite
from tests.flows.drill.checks import settled
from tests.flows.drill.telling import expect, say
from tests.flows.ground import Follower, Ground, small_suite, to_toml

__all__ = ["DRILLS"]

_RUNS_SECONDS = 0.002
"""Shorter than a step, so that every step is slower and not one among many: the median is what is judged."""
_STOPS_SECONDS = 0.006
_TURNS_A_LOOK = 60


def _suite(this: Ground, name: str) -> Suite:
    """The small suite with a speed part, and a limit that no neighbour on this machine comes near."""
    suite = small_suite(this.stack.state, name, start_seconds=120, run_seconds=300)
    workload = next(iter(suite.workloads.values())).model_dump(mode="json", exclude_none=True)
    speed = {"steps": 400, "precision": "fp32"}
    content = suite.model_dump(mode="json", exclude_none=True)
    return Suite.model_validate(
        {**content, "workloads": {"tiny": {**workload, "speed": speed}}, "gates": {"throughput_drop": 0.5}}
    )


def _accepted_night(this: Ground, suite: Suite) -> None:
    """One night that passes, and becomes the baseline."""
    one = this.start_round(suite)
    verdict = one.verdict()
    expect(verdict["verdict"] == "pass", f"the night before passes (it is {verdict['verdict']}: {verdict['notes']})")
    path = this.stack.state / f"{suite.name}.toml"
    path.write_text(to_toml(suite.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    command = [sys.executable, "-m", "plumbline", "baseline", "accept", str(path)]
    done = subprocess.run(command, env=this.stack.environment(), capture_output=True, text=True, check=False)
    expect(done.returncode == 0, f"its records are accepted as the baseline {done.stderr.strip()[-200:]}")


@contextmanager
def _starved(this: Ground, platform: str) -> Iterator[None]:
    """The platform's trainings get a quarter of the time, as under a CPU quota: held still again and again.

    Busy loops beside them are no such thing: what they take depends on how the kernel groups sessions.
    """
    over = threading.Event()

    def starve() -> None:
        turns = 0
        trainings: list[int] = []
        while not over.wait(_RUNS_SECONDS):
            # Looking through all processes takes longer than a turn.
            if turns % _TURNS_A_LOOK == 0:
                trainings = this.processes("plumbline.train", f"--platform {platform}")
            turns += 1
            _send(trainings, signal.SIGSTOP)
            over.wait(_STOPS_SECONDS)
            _send(trainings, signal.SIGCONT)

    thread = threading.Thread(target=starve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _speed_findings(verdict: dict[str, Any], platform: str) -> list[dict[str, Any]]:
    return [one for one in verdict["platforms"][platform]["findings"] if one["check"].startswith("speed.")]


def _reruns(verdict: dict[str, Any], platform: str) -> list[str]:
    return [name for name in verdict["platforms"][platform]["records"] if "rerun" in name]


def platform_slow(this: Ground) -> None:
    """A platform has become slow and stays so: one independent rerun confirms it, and it is drift of speed alone."""
    suite = _suite(this, "drill-slow")
    _accepted_night(this, suite)
    with _starved(this, "azure"):
        say("the trainings of azure get a quarter of the time")
        one = this.start_round(suite)
        verdict = one.verdict()
    _told(one, verdict, "azure")
    expect(verdict["verdict"] == "drift", f"drift (it is {verdict['verdict']})")
    result = verdict["platforms"]["azure"]
    bad = {finding["check"] for finding in result["findings"] if finding["outcome"] == "drift"}
    expect(bool(bad) and all(check.startswith("speed.") for check in bad), f"only its speed drifts: {sorted(bad)}")
    causes = [(cause["code"], cause["sure"]) for cause in result["causes"]]
    # What holds a process still from outside slows its microbenchmarks as well: that may leave the cause open.
    expect(causes[0][0] in {"contention", "unattributed"}, f"the cause is named or left open, never another: {causes}")
    settled(this, one, verdict, reruns=1)


def platform_slow_for_a_moment(this: Ground) -> None:
    """A platform was slow for a moment: the rerun does not confirm it, and nobody is woken."""
    suite = _suite(this, "drill-slow-once")
    _accepted_night(this, suite)
    with _starved(this, "azure"):
        say("the trainings of azure get a quarter of the time, until the rerun")
        one = this.start_round(suite)
        one.until_phase("confirming", seconds=180)
    verdict = one.verdict()
    _told(one, verdict, "azure")
    expect(verdict["verdict"] == "pass", f"pass (it is {verdict['verdict']}: {verdict['notes']})")
    settled(this, one, verdict, reruns=1)


def _told(one: Follower, verdict: dict[str, Any], platform: str) -> None:
    for finding in _speed_findings(verdict, platform):
        say(f"{finding['check']}: {finding['outcome']}, {finding['observed']} against {finding['limit']}")
    reruns = _reruns(verdict, platform)
    expect(len(reruns) == 1, f"one rerun was dispatched: {reruns}")
    others = [name for name in one.suite.platforms if name != platform and _reruns(verdict, name)]
    expect(not others, "and none elsewhere")


DRILLS = (platform_slow, platform_slow_for_a_moment)
