"""One round of a suite at a time: a second one queues, or is refused, as the suite says."""

from __future__ import annotations

import time

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.runtime import flow_run

from plumbline.dispatch.turn import Turn
from plumbline.errors import UnavailableError
from plumbline.rounds import Round
from tasks.controllers import ran_since, round_of, rounds_under_way, succeed
from tasks.observing import PREFECT_ERRORS
from tasks.progress import Progress, read_progress
from tasks.telling import tell

__all__ = ["take_turn"]

_POLL_SECONDS = 2.0


def take_turn(this: Round) -> None:
    """Return when no earlier round of the suite runs; `UnavailableError` where the suite refuses to wait."""
    turn = Turn()
    told = ""
    with get_client(sync_client=True) as client:
        while True:
            try:
                turn = turn.look(_ahead(client, this), time.monotonic())
            except PREFECT_ERRORS:
                time.sleep(_POLL_SECONDS)
                continue
            other = turn.waits_for(time.monotonic())
            if other is None:
                return
            if this.suite.dispatch.overlap == "refuse":
                raise UnavailableError(f"{other} runs already", where=this.suite.name, key="dispatch.overlap")
            if other != told:
                told = other
                tell("say", message=f"waits for {other} to end")
            time.sleep(_POLL_SECONDS)


def _ahead(client: SyncPrefectClient, this: Round) -> dict[str, str]:
    """The rounds that ran before ours did, each with its last sign of life, whichever of its controllers gave it."""
    own = client.read_flow_run(flow_run.id)
    rounds = rounds_under_way(client, this.suite.name, own)
    ours = rounds.pop(round_of(own))
    succeed(client, own, ours)
    since = min(map(ran_since, ours))
    before = {name: runs for name, runs in rounds.items() if min(map(ran_since, runs)) < since}
    alive = read_progress(client, [one.id for runs in before.values() for one in runs]) if before else {}
    return {runs[0].name: max(alive.get(one.id, Progress()).changed for one in runs) for runs in before.values()}
