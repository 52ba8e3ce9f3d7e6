"""One round of a suite at a time: a second one queues, or is refused, as the suite says."""

from __future__ import annotations

import time

from prefect import get_client, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.runtime import flow_run

from plumbline.dispatch.turn import Turn
from plumbline.errors import UnavailableError
from plumbline.rounds import Round
from tasks.observing import PREFECT_ERRORS, Progress, read_progress
from tasks.telling import tell

__all__ = ["round_tags", "take_turn"]

_POLL_SECONDS = 2.0
_LIVE = [StateType.RUNNING, StateType.CANCELLING]


def round_tags(suite: str) -> list[str]:
    """What marks the controllers of a suite."""
    return ["plumbline-round", f"suite:{suite}"]


@task(name="take turn", persist_result=False)
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
    """The rounds that began before ours, each with its last sign of life; a round may have had several controllers."""
    own = client.read_flow_run(flow_run.id)
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=round_tags(this.suite.name)),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE)),
    )
    rounds: dict[str, list[FlowRun]] = {this.id: [own]}
    for one in client.read_flow_runs(flow_run_filter=wanted, limit=200):
        rounds.setdefault(_round_of(one, this, own), []).append(one)
    began = {name: min((str(one.created), str(one.id)) for one in runs) for name, runs in rounds.items()}
    before = {name: runs for name, runs in rounds.items() if began[name] < began[this.id]}
    alive = read_progress(client, [one.id for runs in before.values() for one in runs]) if before else {}
    return {runs[0].name: max(alive.get(one.id, Progress()).changed for one in runs) for runs in before.values()}


def _round_of(run: FlowRun, this: Round, own: FlowRun) -> str:
    """A round started by hand is named by it; any other has one controller, and Prefect starts that one again."""
    return this.id if run.id == own.id else (run.parameters or {}).get("round_id") or str(run.id)
