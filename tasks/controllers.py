"""The controllers of a suite, by round: one that was killed the server holds for running, until it is succeeded."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.states import Crashed

from tasks.tagging import round_tags

__all__ = [
    "is_live",
    "live_controllers",
    "ran_since",
    "round_of",
    "rounds_under_way",
    "succeed",
]

_LIVE = [StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200


def is_live(run: FlowRun) -> bool:
    """Whether the server holds it for running."""
    return run.state is not None and run.state.type in _LIVE


def ran_since(run: FlowRun) -> tuple[datetime, str]:
    """When the controller first ran, by which rounds are in order: Prefect creates nightly ones days ahead; its id."""
    # One that was cancelled before it ever ran has a start as well.
    first = run.start_time if run.run_count else None
    return first or datetime.max.replace(tzinfo=UTC), str(run.id)


def round_of(run: FlowRun) -> str:
    """A round started by hand is named by it; any other has one controller, and Prefect starts that one again."""
    return (run.parameters or {}).get("round_id") or str(run.id)


def live_controllers(client: SyncPrefectClient, suite: str) -> list[FlowRun]:
    """Those of a suite's controllers that the server holds for running."""
    tags = FlowRunFilterTags(all_=round_tags(suite))
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE))
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags, state=running), limit=_PAGE)


def rounds_under_way(client: SyncPrefectClient, suite: str, own: FlowRun) -> dict[str, list[FlowRun]]:
    """Our round and every other that has a live controller, each with all the controllers that it has had."""
    tags = FlowRunFilterTags(all_=round_tags(suite))
    live = [own, *live_controllers(client, suite)]
    # The controllers of one round bear its name; a nightly one is alone under a name that all nights share.
    named = FlowRunFilterName(any_=[one.name for one in live if round_of(one) != str(one.id)])
    earlier = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags, name=named), limit=_PAGE)
    rounds: dict[str, list[FlowRun]] = {}
    for one in {run.id: run for run in (*live, *(earlier if named.any_ else ()))}.values():
        rounds.setdefault(round_of(one), []).append(one)
    return rounds


def succeed(client: SyncPrefectClient, own: FlowRun, controllers: list[FlowRun]) -> None:
    """Our round's earlier controllers were killed, or we would not be here: say so, and nobody waits for them."""
    for one in controllers:
        if is_live(one) and one.id != own.id and ran_since(one) < ran_since(own):
            words = "its process was killed; the round goes on in another controller"
            client.set_flow_run_state(one.id, Crashed(message=words), force=True)
