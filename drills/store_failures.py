"""Object store that does not answer during staging: for 30 s, five minutes, or for good."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from drills.alerted_rounds import alerted_round, alerted_suite, read_attempts
from drills.expectations import expect_settled
from drills.processes import TRAINER
from drills.transcript import expect, say
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.webhook_server import Receiver

__all__ = ["DRILLS"]

_STORE = "moto.server"
"""Command line of the S3 endpoint: data and outbox of aws."""
_FIVE_MINUTES = 300.0


def store_away_briefly(stack: RunningStack) -> None:
    """S3 is away for 30 s: the first attempt waits for it, and no alert is sent."""
    with _struck(stack, "drill-store-brief", 101, retries=1) as (round_, hook):
        _away(stack, 30.0)
        verdict = round_.verdict()
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    expect(not read_attempts(verdict), f"the first attempt counts: {read_attempts(verdict)}")
    expect(not hook.got, "no alert was sent")
    expect_settled(stack, round_, verdict)


def store_away_for_minutes(stack: RunningStack) -> None:
    """S3 is away for five minutes, longer than one attempt waits: a later attempt passes."""
    with _struck(stack, "drill-store-minutes", 102, retries=3) as (round_, hook):
        _away(stack, _FIVE_MINUTES)
        verdict = round_.verdict(600.0)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    expect(bool(read_attempts(verdict)), f"an earlier attempt failed: {read_attempts(verdict)}")
    expect(not hook.got, "no alert was sent")
    expect_settled(stack, round_, verdict)


def store_away_for_good(stack: RunningStack) -> None:
    """S3 stays away: aws is unavailable, azure is judged, and one alert is sent."""
    with _struck(stack, "drill-store-gone", 103, retries=1) as (round_, hook):
        stack.kill(_STORE, number=signal.SIGSTOP)
        say("S3 stops answering")
        verdict = round_.verdict(900.0)
    expect(verdict["verdict"] == "inconclusive", f"inconclusive (is {verdict['verdict']}: {verdict['notes']})")
    aws, azure = (verdict["platforms"][name] for name in ("aws", "azure"))
    expect(aws["verdict"] == "inconclusive", f"aws is inconclusive: {aws['unavailable']}")
    expect(bool(aws["unavailable"]) and not aws["causes"], "it is unavailable, and has no cause")
    expect(azure["verdict"] == "pass", f"azure passes (is {azure['verdict']}: {azure['notes']})")
    titles = [alert["title"] for alert in hook.got]
    expect(len(titles) == 1 and "aws" in titles[0], f"one alert was sent: {titles}")
    expect_settled(stack, round_, verdict)


@contextmanager
def _struck(stack: RunningStack, name: str, seed: int, *, retries: int) -> Iterator[tuple[RunningRound, Receiver]]:
    """Start a round on new data, and yield once the training of aws has started."""
    suite = alerted_suite(stack, name, seed, run_seconds=400, retries=retries)
    try:
        with alerted_round(stack, suite) as (round_, hook):
            stack.until_running(TRAINER, "--platform aws", f"--round-id {round_.round_id}")
            yield round_, hook
    finally:
        stack.kill(_STORE, number=signal.SIGCONT)


def _away(stack: RunningStack, seconds: float) -> None:
    stack.kill(_STORE, number=signal.SIGSTOP)
    say(f"S3 stops answering for {seconds:g} s")
    time.sleep(seconds)
    stack.kill(_STORE, number=signal.SIGCONT)


DRILLS = (store_away_briefly, store_away_for_minutes, store_away_for_good)
