"""A worker's polls are noted now and then: a write to SQLite for each of them has other requests refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.server.models.deployments import mark_deployments_ready
from prefect.server.models.work_queues import mark_work_queues_ready

from tasks.noting import Sparing

POOL = "noting"


def last_polled(client: SyncPrefectClient) -> str | None:
    (queue,) = client.request("POST", "/work_pools/{name}/queues/filter", path_params={"name": POOL}, json={}).json()
    told: str | None = queue["last_polled"]
    return told


def test_a_hundred_polls_are_a_note_or_two(client: SyncPrefectClient) -> None:
    client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    flow = client.create_flow_from_name("polled")
    deployment = client.create_deployment(flow_id=flow, name="noting", work_pool_name=POOL)
    began, seen = time.monotonic(), set()
    for _ in range(100):
        path = {"name": POOL}
        client.request("POST", "/work_pools/{name}/get_scheduled_flow_runs", path_params=path, json={})
        seen.add(last_polled(client))
    deadline = time.monotonic() + 60
    while (told := last_polled(client)) is None or not ready(client, deployment):
        assert time.monotonic() < deadline, "no poll was noted"
        time.sleep(0.2)
    notes = (seen | {told}) - {None}
    assert 1 <= len(notes) <= 1 + (time.monotonic() - began) // 10


def ready(client: SyncPrefectClient, deployment: UUID) -> bool:
    status = client.read_deployment(deployment).status
    return status is not None and status.value == "READY"


def test_a_poll_is_noted_again_after_ten_seconds_and_other_jobs_always() -> None:
    now, added = [100.0], []

    class Docket:
        name = "docket"

        def add(self, function: Any, when: Any = None, key: Any = None) -> Any:  # noqa: ARG002
            async def job(*_: object, **__: object) -> None:
                added.append((function, key))

            return job

    async def other() -> None: ...

    sparing = Sparing(Docket(), clock=lambda: now[0])  # type: ignore[arg-type]

    def at(moment: float, function: Any, key: str) -> int:
        now[0] = moment
        before = len(added)
        asyncio.run(sparing.add(function, key=key)(work_queue_ids=[]))  # type: ignore[arg-type]
        return len(added) - before

    assert [at(moment, mark_work_queues_ready, "a") for moment in (100, 101, 109.9, 110, 111)] == [1, 0, 0, 1, 0]
    assert at(111, mark_work_queues_ready, "b") == 1
    assert at(111, mark_deployments_ready, "c") == 1
    assert [at(111, other, "a"), at(111, other, "a")] == [1, 1]
    assert sparing.name == "docket"
