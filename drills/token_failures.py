"""Session token of one platform that expires before its data is staged: for one attempt, or for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drills.alerted_rounds import (
    alerted_round,
    alerted_suite,
    expect_retried,
    expect_unavailable,
    until_attempt_failed,
    worker_environment,
)
from drills.token_proxy import TokenProxy, token_proxy
from drills.transcript import expect, say
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.webhook_server import Receiver

__all__ = ["DRILLS"]

_REASON = "ExpiredToken"


def token_expired_briefly(stack: RunningStack) -> None:
    """S3 refuses the token of aws while the first attempt stages: the second attempt passes, no alert is sent.

    The token is renewed before the attempt writes its record. This record has to be one of a failed infrastructure.
    """
    with _expired(stack, "drill-token-brief", 111, retries=2, below="/plumbline-data/") as (round_, hook, proxy):
        until_attempt_failed(stack, round_, "aws")
        proxy.refused_below = None
        say("the token is accepted again")
        expect_retried(stack, round_, hook, _REASON)
        _expect_refused(proxy)


def token_expired(stack: RunningStack) -> None:
    """S3 refuses the token of aws for good: aws is unavailable, azure is judged, and one alert is sent."""
    with _expired(stack, "drill-token-gone", 112, retries=1, below="/") as (round_, hook, proxy):
        # Neither data nor outbox takes this token: no attempt leaves a record.
        expect_unavailable(stack, round_, hook, _REASON)
        _expect_refused(proxy)


@contextmanager
def _expired(
    stack: RunningStack, name: str, seed: int, *, retries: int, below: str
) -> Iterator[tuple[RunningRound, Receiver, TokenProxy]]:
    """Start a round on new data, in which the token of aws has expired."""
    suite = alerted_suite(stack, name, seed, start_seconds=120, run_seconds=200, retries=retries)
    endpoint = stack.stack.store_environment(suite.platforms["aws"])["AWS_ENDPOINT_URL"]
    with token_proxy(endpoint) as proxy, worker_environment(stack, "aws", proxy.environment()):
        proxy.refused_below = below
        say(f"S3 answers 400 ExpiredToken to the token of aws, below {below}")
        with alerted_round(stack, suite) as (round_, hook):
            yield round_, hook, proxy


def _expect_refused(proxy: TokenProxy) -> None:
    staging = [request for request in proxy.refused if "manifest.json" in request]
    expect(bool(staging), f"{len(proxy.refused)} requests were refused, at staging: {staging[:2]}")


DRILLS = (token_expired_briefly, token_expired)
