"""Answers of a platform's outbox and Prefect API that would hold up the controller, or fill its memory."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from contextlib import suppress
from functools import cache
from itertools import repeat
from queue import Queue
from typing import Any, cast

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.states import Scheduled

from plumbline.night.dispatch import Job, Recorded, RecordKind, TrainingOrder
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client import api
from plumbline.tasks.prefect_client.flow_runs import read_children
from plumbline.tasks.prefect_client.orchestrator import PrefectOrchestrator
from plumbline.tasks.prefect_client.platform_apis import PlatformApis
from tests.flows.stubs import deploy_round
from tests.http_server import Handler, serving


def test_an_outbox_that_is_silent_holds_up_no_other_and_what_it_says_of_the_run_is_no_word_on_its_end() -> None:
    answers: Queue[Recorded] = Queue()

    def silent(_: TrainingOrder) -> Recorded:
        return answers.get(timeout=60)

    apis = PlatformApis(cast("SyncPrefectClient", None), {})
    orchestrator = PrefectOrchestrator(
        apis, "s", {}, start=cast("Any", silent), orders=lambda *_: cast("TrainingOrder", None), recorded=silent
    )
    job, absent = Job("a", "aws", 60, 60, 0), Recorded(RecordKind.ABSENT)
    began = time.monotonic()
    for _ in range(30):
        assert orchestrator.recorded(job, 0, has_ended=False) is None
    assert orchestrator.recorded(job, 0, has_ended=True) is None
    assert time.monotonic() - began < 5
    answers.put(absent)  # to the look that began while the run was running
    deadline = time.monotonic() + 30
    while orchestrator.recorded(job, 0, has_ended=False) is None:
        assert time.monotonic() < deadline
    assert orchestrator.recorded(job, 0, has_ended=True) is None
    answers.put(Recorded(RecordKind.COMPLETE))
    answers.put(Recorded(RecordKind.COMPLETE))


_MANY = 110
"""MiB."""


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(_MANY << 20), 1)


class Foreign(Handler):
    """Server of answers that Prefect's API never gives, by path."""

    def answer(self) -> None:
        is_busy = "busy" in self.path
        self.send_response(429 if is_busy else 200)
        self.send_header("Content-Type", "application/json")
        if is_busy:
            self.send_header("Retry-After", "3600" if "date" not in self.path else "Wed, 21 Oct 2099 07:28:00 GMT")
        if "gzip" in self.path:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            for chunk in [] if is_busy else [bomb()] if "gzip" in self.path else repeat(bytes(1 << 20), _MANY):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")


@pytest.mark.parametrize("path", ["gzip", "plain", "busy", "busy-date"])
def test_an_api_takes_neither_the_memory_nor_the_time_of_the_controller(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MOST_WAIT", 0.01)
    bomb()
    tracemalloc.start()
    try:
        with (
            serving(Foreign) as url,
            SyncPrefectClient(f"{url}/{path}", httpx_settings=api.client_settings()) as client,
            pytest.raises(api.PREFECT_ERRORS),
        ):
            client.hello()
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_late_run_in_a_paused_queue_says_so(client: SyncPrefectClient, suite: Suite) -> None:
    pool = f"{suite.name}-ctl"[:60]
    deploy_round(suite, pool)
    deployed = client.read_deployment_by_name(f"plumbline-regression/{suite.name}").id
    run = client.create_flow_run_from_deployment(deployed).id
    client.set_flow_run_state(run, Scheduled(name="Late"), force=True)
    assert read_children(client, [run], {})[run].message == ""
    queue = client.read_work_queue_by_name("default", pool)
    client.update_work_queue(queue.id, is_paused=True)
    expected = f"work queue default of {pool} is paused (hint: `prefect work-queue resume default --pool {pool}`)"
    assert read_children(client, [run], {})[run].message == expected
    client.update_work_pool(pool, WorkPoolUpdate(is_paused=True))
    assert f"work pool {pool} is paused" in read_children(client, [run], {})[run].message
