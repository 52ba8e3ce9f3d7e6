"""Rounds whose alerts are received, and the results expected of a platform that fails in them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drills.expectations import expect_settled, open_client, read_trainings
from drills.transcript import expect, wait_until
from plumbline.schema.suite import Alert, Suite
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.small_suite import small_suite
from tests.flows.webhook_server import Receiver, receiver

__all__ = [
    "alerted_round",
    "alerted_suite",
    "expect_retried",
    "expect_unavailable",
    "read_attempts",
    "until_attempt_failed",
    "worker_environment",
]


def alerted_suite(stack: RunningStack, name: str, seed: int, **limits: Any) -> Suite:
    """Return a small suite with new data and an alert to `HOOK`; `limits` changes every platform."""
    suite = small_suite(stack.stack.state, name, **limits)
    content = suite.model_dump(mode="json", exclude_none=True)
    content["datasets"]["reviews"]["grammar_seed"] = seed
    every = ("drift", "invalid", "unavailable", "missed")
    alert = Alert(on=every, block=f"apprise-url/{name}", address_from="HOOK")
    return Suite.model_validate({**content, "alerts": [alert.model_dump(mode="json")]})


@contextmanager
def alerted_round(stack: RunningStack, suite: Suite) -> Iterator[tuple[RunningRound, Receiver]]:
    """Start a round of an alerted suite; yield it with the receiver of its alerts."""
    with receiver() as hook:
        os.environ["HOOK"] = hook.url
        try:
            yield stack.start_round(suite), hook
        finally:
            os.environ.pop("HOOK")


@contextmanager
def worker_environment(stack: RunningStack, name: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Run the worker of a platform with these variables inside the block."""
    suite = stack.stack.suite
    stack.stack.suite = suite.replace(local={name: {"environment": dict(variables)}})
    try:
        _restart_worker(stack, name)
        yield
    finally:
        stack.stack.suite = suite
        _restart_worker(stack, name)


def _restart_worker(stack: RunningStack, name: str) -> None:
    stack.stop_worker(name)
    stack.start_worker(name)
    stack.until_online(name)


def until_attempt_failed(stack: RunningStack, round_: RunningRound, platform: str, seconds: float = 120.0) -> None:
    """Wait until the first training run of the platform has ended."""
    with open_client(stack) as client:

        def is_over() -> bool:
            runs = read_trainings(client, round_.round_id, f"platform:{platform}")
            return bool(runs) and runs[0].state is not None and runs[0].state.is_final()

        wait_until(is_over, f"the first attempt of {platform} has ended", seconds)


def read_attempts(verdict: dict[str, Any], platform: str = "aws") -> list[str]:
    """Return the notes about failed attempts of a platform."""
    return [note["text"] for note in verdict["platforms"][platform]["notes"] if note["code"] == "attempt"]


def expect_retried(stack: RunningStack, round_: RunningRound, hook: Receiver, reason: str) -> dict[str, Any]:
    """Check that aws passes at its second attempt, that nothing is alerted, and that azure is not blamed.

    `reason` has to be in the note about the failed attempt.
    """
    verdict = round_.verdict(600.0)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    attempts = read_attempts(verdict)
    expect(len(attempts) == 1 and reason in attempts[0], f"one attempt of aws failed, by {reason!r}: {attempts}")
    records = verdict["platforms"]["aws"]["records"]
    expect(records == [round_.record("aws", 1)], f"the second attempt's record counts: {records}")
    _expect_orders(stack, round_, {"aws": 2, "azure": 1})
    _expect_azure_passes(verdict)
    expect(not hook.got, f"no alert was sent: {[alert['title'] for alert in hook.got]}")
    expect_settled(stack, round_, verdict)
    return verdict


def expect_unavailable(
    stack: RunningStack, round_: RunningRound, hook: Receiver, reason: str, *, failed_records: int = 0
) -> dict[str, Any]:
    """Check that aws is unavailable after all its attempts, with one alert, and that azure is not blamed.

    `reason` has to be in the notes, in the verdict and in the alert. `failed_records` counts the stored records of
    trainings that infrastructure ended.
    """
    verdict = round_.verdict(900.0)
    expect(verdict["verdict"] == "inconclusive", f"inconclusive (is {verdict['verdict']}: {verdict['notes']})")
    aws = verdict["platforms"]["aws"]
    expect(aws["verdict"] == "inconclusive", f"aws is inconclusive (is {aws['verdict']})")
    expect(reason in aws["unavailable"], f"the reason names {reason!r}: {aws['unavailable']}")
    expect(not aws["causes"], "it has no cause")
    retries = round_.suite.platforms["aws"].retries
    attempts = read_attempts(verdict)
    expect(len(attempts) == retries and all(reason in note for note in attempts), f"{retries} retries: {attempts}")
    _expect_orders(stack, round_, {"aws": 1 + retries, "azure": 1})
    _expect_azure_passes(verdict)
    titles = [alert["title"] for alert in hook.got]
    expect(titles == [f"[plumbline] {round_.suite.name}: aws is unavailable"], f"one alert was sent: {titles}")
    expect(reason in hook.got[0]["message"], f"it names {reason!r}")
    expect_settled(stack, round_, verdict, failed_records=failed_records)
    return verdict


def _expect_orders(stack: RunningStack, round_: RunningRound, expected: Mapping[str, int]) -> None:
    """Check the number of training runs that were dispatched to each platform."""
    with open_client(stack) as client:
        ordered = {name: len(read_trainings(client, round_.round_id, f"platform:{name}")) for name in expected}
    expect(ordered == dict(expected), f"training runs: {ordered}, expected {dict(expected)}")


def _expect_azure_passes(verdict: dict[str, Any]) -> None:
    azure = verdict["platforms"]["azure"]
    expect(azure["verdict"] == "pass", f"azure passes (is {azure['verdict']}: {azure['notes']})")
    expect(
        not azure["causes"] and not azure["unavailable"] and not read_attempts(verdict, "azure"),
        "azure has no cause, and needed one attempt",
    )
