"""The controllers of a suite, by round: one that was killed the server holds for running, until it is succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
from prefect.context import TagsContext
from prefect.states import Crashed

__all__ = ["is_live", "ran_since", "round_of", "round_tags", "rounds_under_way", "succeed", "untagged"]

_LIVE = [StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200


def round_tags(suite: str) -> list[str]:
    """What marks the controllers of a suite."""
    return ["plumbline-round", f"suite:{suite}"]


@contextmanager
def untagged() -> Iterator[None]:
    """Tasks without the tags of their run.

    Prefect asks the server for a slot of each tag before each task. On SQLite that request is refused about every
    second time, because it reads and then writes, and the client tries again after two seconds.
    """
    with TagsContext(current_tags=set()):
        yield


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


def rounds_under_way(client: SyncPrefectClient, suite: str, own: FlowRun) -> dict[str, list[FlowRun]]:
    """Our round and every other that has a live controller, each with all the controllers that it has had."""
    tags = FlowRunFilterTags(all_=round_tags(suite))
    running = FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE))
    live = [own, *client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags, state=running), limit=_PAGE)]
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
