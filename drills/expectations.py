"""Checks after every drill: deadline, no leftover process, each record once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from drills.processes import TRAINER
from drills.transcript import expect, wait_until
from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.schema.suite import Suite
from tests.flows.local_stack import RunningRound, RunningStack

__all__ = [
    "expect_no_leftovers",
    "expect_pass",
    "expect_settled",
    "open_client",
    "read_controller_run",
    "read_trainings",
]

_CANCEL_AND_SETTLE_SECONDS = 120.0
_COMMAND_SECONDS = 60.0
"""The start of the command, of the controller's process, and its phases after the trainings."""
_LEFTOVER_SECONDS = 20.0


@contextmanager
def open_client(stack: RunningStack) -> Iterator[SyncPrefectClient]:
    """Open a client of the stack's Prefect server."""
    with (
        temporary_settings({PREFECT_API_URL: stack.stack.api_url, PREFECT_API_AUTH_STRING: stack.stack.login}),
        get_client(sync_client=True) as client,
    ):
        yield client


def read_trainings(client: SyncPrefectClient, round_id: str, *tags: str) -> list[FlowRun]:
    """Return the training runs of a round that have all these tags, oldest first."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{round_id}", *tags]))
    return sorted(client.read_flow_runs(flow_run_filter=wanted, limit=200), key=lambda run: str(run.created))


def read_controller_run(client: SyncPrefectClient, round_: RunningRound) -> FlowRun:
    """Return the regression run of a round, which the command started."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["plumbline-round", f"suite:{round_.suite.name}"]))
    runs = client.read_flow_runs(flow_run_filter=wanted, limit=200)
    return next(run for run in runs if run.parameters.get("round_id") == round_.round_id)


def expect_pass(
    stack: RunningStack, round_: RunningRound, *, notes: str = "", platform: str = "aws", seconds: float = 240.0
) -> dict[str, Any]:
    """Check that the round passes and is settled, and that the notes contain `notes`."""
    verdict = round_.verdict(seconds)
    expect(verdict["verdict"] == "pass", f"verdict pass (is {verdict['verdict']}: {verdict['notes']})")
    if notes:
        result = verdict["platforms"][platform]["notes"]
        expect(any(notes in note["text"] for note in result), f"a note contains {notes!r} ({result})")
    expect_settled(stack, round_, verdict)
    return verdict


def expect_settled(
    stack: RunningStack, round_: RunningRound, verdict: dict[str, Any], *, reruns: int = 0, resumes: int = 0,
    failed_records: int = 0,
) -> None:  # fmt: skip
    """Check the deadline, that no run is left, and that each record is stored and judged once.

    `resumes` counts starts of the controller after silence: each takes the heartbeat's window longer.
    `failed_records` counts records of trainings that infrastructure ended: they are stored, and not judged.
    """
    platforms = verdict["platforms"].values()
    attempts = 1 + max(sum(_is_attempt(note) for note in platform["notes"]) for platform in platforms)
    deadline = _deadline_seconds(round_.suite, attempts + min(reruns, 1)) + round_.waited_seconds + 150.0 * resumes
    expect(round_.took < deadline, f"the round ended after {round_.took:.0f} s, its deadline is {deadline:.0f} s")
    expect_no_leftovers(stack, verdict["round"])
    central = CentralStore(open_store(round_.suite.store))
    # A second round's identifier begins with the first's.
    prefixes = tuple(f"{verdict['round']}-{round_.suite.name}-{name}-" for name in round_.suite.platforms)
    stored = [name for name in central.list_records() if name.startswith(prefixes)]
    judged = [record for result in verdict["platforms"].values() for record in result["records"]]
    unjudged = sorted(set(stored) - set(judged))
    expect(len(unjudged) == failed_records, f"{failed_records} stored records are not judged: {unjudged}")
    once = sorted(stored) == sorted(judged + unjudged)
    expect(
        once,
        f"the stored records are those judged, each once: {len(judged)}"
        + ("" if once else f": {judged}, not {stored}"),
    )
    available = [name for name, result in verdict["platforms"].items() if not result["unavailable"]]
    expected = len(available) * len(round_.suite.workloads) + reruns
    expect(len(judged) == expected, f"{len(judged)} records of {len(available)} platforms: none is lost")


def _is_attempt(note: dict[str, str]) -> bool:
    return note["code"] == "attempt" and note["text"].startswith("attempt")


def _deadline_seconds(suite: Suite, attempts: int) -> float:
    """Return the bound that docs/how-to/failures.md states, for this number of attempts."""
    slowest = max(platform.start_seconds + platform.run_seconds for platform in suite.platforms.values())
    return _COMMAND_SECONDS + attempts * (slowest + _CANCEL_AND_SETTLE_SECONDS)


def expect_no_leftovers(stack: RunningStack, round_id: str, seconds: float = _LEFTOVER_SECONDS) -> None:
    """Check that after `seconds` no training process and no open training run is left."""
    wait_until(lambda: not stack.processes(TRAINER, f"--round-id {round_id}"), "no training process is left", seconds)
    expect(True, "no training process is left")
    deadline = time.monotonic() + seconds
    with open_client(stack) as client:
        while True:
            runs = read_trainings(client, round_id)
            unfinished = [f"{run.name}: {run.state}" for run in runs if run.state is None or not run.state.is_final()]
            if not unfinished or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    expect(not unfinished, f"none of the {len(runs)} training runs is open {unfinished or ''}".strip())
