"""Slow platforms: measured again before a drift, with a named cause."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from drills.expectations import expect_settled
from drills.transcript import expect, say
from plumbline.schema.suite import Suite
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS"]

_RUNS_SECONDS = 0.002
"""Shorter than a step, so that every step is slower: the gate judges the median."""
_STOPS_SECONDS = 0.006
_TURNS_PER_LOOK = 60


def _speed_suite(stack: RunningStack, name: str) -> Suite:
    """Return the small suite with a speed part, and a limit far above other load."""
    suite = small_suite(stack.stack.state, name, start_seconds=120, run_seconds=300)
    workload = next(iter(suite.workloads.values())).model_dump(mode="json", exclude_none=True)
    speed = {"steps": 400, "precision": "fp32"}
    content = suite.model_dump(mode="json", exclude_none=True)
    return Suite.model_validate(
        {**content, "workloads": {"tiny": {**workload, "speed": speed}}, "gates": {"throughput_drop": 0.5}}
    )


def _accept_night(stack: RunningStack, suite: Suite) -> None:
    """Run one round that passes, and accept it as the baseline."""
    verdict = stack.start_round(suite).verdict()
    expect(verdict["verdict"] == "pass", f"the night before passes (is {verdict['verdict']}: {verdict['notes']})")
    stack.command("baseline", "accept", str(stack.write_suite(suite)))
    say("its records are accepted as the baseline")


@contextmanager
def _starved(stack: RunningStack, platform: str) -> Iterator[None]:
    """Give the platform's trainings a quarter of the CPU, like a quota.

    Busy loops beside them would not do: their share depends on how the kernel groups sessions.
    """
    over = threading.Event()

    def starve() -> None:
        turns = 0
        trainings: list[int] = []
        while not over.wait(_RUNS_SECONDS):
            # A look through all processes takes longer than a turn.
            if turns % _TURNS_PER_LOOK == 0:
                trainings = stack.processes("plumbline.train", f"--platform {platform}")
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
    return [item for item in verdict["platforms"][platform]["findings"] if item["check"].startswith("speed.")]


def _reruns(verdict: dict[str, Any], platform: str) -> list[str]:
    return [name for name in verdict["platforms"][platform]["records"] if "rerun" in name]


def platform_slow(stack: RunningStack) -> None:
    """A platform stays slow: one independent rerun confirms the drift of its speed."""
    suite = _speed_suite(stack, "drill-slow")
    _accept_night(stack, suite)
    with _starved(stack, "azure"):
        say("the trainings of azure get a quarter of the time")
        round_ = stack.start_round(suite)
        verdict = round_.verdict()
    _expect_one_rerun(round_, verdict, "azure")
    expect(verdict["verdict"] == "drift", f"drift (is {verdict['verdict']})")
    result = verdict["platforms"]["azure"]
    bad = {finding["check"] for finding in result["findings"] if finding["outcome"] == "drift"}
    expect(bool(bad) and all(check.startswith("speed.") for check in bad), f"only its speed drifts: {sorted(bad)}")
    causes = [(cause["code"], cause["sure"]) for cause in result["causes"]]
    # Stopping a process from outside slows its microbenchmarks too: that may leave the cause open.
    expect(causes[0][0] in {"contention", "unattributed"}, f"the cause is named or left open: {causes}")
    expect_settled(stack, round_, verdict, reruns=1)


def platform_slow_for_a_moment(stack: RunningStack) -> None:
    """A platform is slow for a moment: the rerun does not confirm it, and the round passes."""
    suite = _speed_suite(stack, "drill-slow-once")
    _accept_night(stack, suite)
    with _starved(stack, "azure"):
        say("the trainings of azure get a quarter of the time, until the rerun")
        round_ = stack.start_round(suite)
        round_.until_said("confirming", seconds=180)
    verdict = round_.verdict()
    _expect_one_rerun(round_, verdict, "azure")
    expect(verdict["verdict"] == "pass", f"pass (is {verdict['verdict']}: {verdict['notes']})")
    expect_settled(stack, round_, verdict, reruns=1)


def _expect_one_rerun(round_: RunningRound, verdict: dict[str, Any], platform: str) -> None:
    for finding in _speed_findings(verdict, platform):
        say(f"{finding['check']}: {finding['outcome']}, {finding['observed']} against {finding['limit']}")
    reruns = _reruns(verdict, platform)
    expect(len(reruns) == 1, f"one rerun was dispatched: {reruns}")
    others = [name for name in round_.suite.platforms if name != platform and _reruns(verdict, name)]
    expect(not others, "the other platforms have no rerun")


DRILLS = (platform_slow, platform_slow_for_a_moment)
