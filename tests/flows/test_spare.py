"""A worker's spare: a process that waits with Prefect loaded becomes the next flow run's, and outlives nobody."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sysconfig
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from anyio.abc import Process
from prefect.client.orchestration import SyncPrefectClient
from prefect.utilities import processutils

from plumbline.localstack import Stack
from plumbline.localstack.pools import ensure_pool
from plumbline.localstack.services import worker_command
from tasks.handing_over import Opener
from tasks.spare import Spare
from tasks.starting import COMMAND, WAITING

POOL = "sparing"


@pytest.fixture
def worker(stack: Stack, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    ensure_pool(stack.api_url, POOL)
    environment = stack.environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}  # for the flow of this test
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            worker_command(POOL, "sparing"), env=environment, cwd=tmp_path, stdout=log, stderr=log
        )
        yield process
        process.terminate()
        process.wait(30)


def spare_of(worker: subprocess.Popen[bytes]) -> int:
    """The process that waits, once there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(worker.pid).children():
            with suppress(psutil.Error):  # one that has just ended has no command line
                if WAITING in child.cmdline():
                    return child.pid
        time.sleep(0.1)
    raise AssertionError("no process waits")


def loading(pid: int) -> None:
    """Return once the process has begun to load Prefect."""
    deadline = time.monotonic() + 60
    while not any("pydantic_core" in one.path for one in psutil.Process(pid).memory_maps()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def run(client: SyncPrefectClient, variables: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a flow run of this worker says of itself."""
    deployment: UUID = client.create_deployment(
        client.create_flow_from_name("spared"), "sparing", entrypoint="tests.flows.spared.spared", work_pool_name=POOL
    )
    made = client.create_flow_run_from_deployment(deployment, job_variables=variables)
    deadline = time.monotonic() + 60
    while not ((state := client.read_flow_run(made.id).state) and state.is_final()):
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    assert state.is_completed(), state
    told: dict[str, Any] = json.loads(state.message or "")
    return told


def test_the_process_that_waits_is_the_next_flow_runs(
    client: SyncPrefectClient, worker: subprocess.Popen[bytes]
) -> None:
    waiting = spare_of(worker)
    usual = {"at_home": True, "arguments": [], "own": None}
    assert run(client) == {"pid": waiting, "waited": True, **usual}
    # At once, most likely before anybody waits again: then the run is started as Prefect does it.
    told = run(client)
    assert told["pid"] != waiting
    assert told.items() >= usual.items()
    assert spare_of(worker) != waiting


def test_with_another_environment_or_after_an_installation_it_starts_over(
    client: SyncPrefectClient, worker: subprocess.Popen[bytes]
) -> None:
    waiting = spare_of(worker)
    told = run(client, {"env": {"OF_ITS_OWN": "here"}})
    assert (told["pid"], told["waited"], told["own"]) == (waiting, False, "here")
    waiting = spare_of(worker)
    loading(waiting)  # it has looked at what is installed
    os.utime(sysconfig.get_path("purelib"))
    told = run(client)
    assert (told["pid"], told["waited"]) == (waiting, False)


def gone(pid: int) -> bool:
    """Within a few seconds: a process that loads looks at its stdin afterwards."""
    deadline = time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
    return True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_worker(worker: subprocess.Popen[bytes], number: signal.Signals) -> None:
    waiting = spare_of(worker)
    worker.send_signal(number)
    worker.wait(30)
    assert gone(waiting)


def test_none_is_made_while_a_run_is_open_or_just_over_and_a_dead_one_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(_lives_of_a_spare(monkeypatch))


async def _lives_of_a_spare(monkey: pytest.MonkeyPatch) -> None:
    now, opened = [0.0], []

    @asynccontextmanager
    async def opening(command: list[str], **_: Any) -> AsyncIterator[Process]:
        opened.append(command)
        yield None  # type: ignore[misc] - nobody looks at it

    monkey.setattr(processutils, "open_process", opening)
    spare = Spare(lambda: now[0])
    opener = Opener(spare)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": {}, "cwd": "/"}

    async def tend(at: float) -> int | None:
        now[0] = at
        await opener.tend()
        return spare.pid

    assert await tend(4.9) is None
    async with opener.open(COMMAND, **options):
        assert await tend(100.0) is None
    assert await tend(104.9) is None
    first = await tend(105.0)
    assert first is not None
    async with opener.open(["git", "status"], **options):
        assert await tend(200.0) == first
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    await asyncio.sleep(0.5)
    async with opener.open(COMMAND, **options):
        pass
    assert opened == [COMMAND, ["git", "status"], COMMAND]
    second = await tend(300.0)
    assert second not in {None, first}
    os.kill(second or 0, signal.SIGKILL)
    assert gone(second or 0)
    await asyncio.sleep(0.5)
    assert await tend(301.0) is None
    assert await tend(359.0) is None
    assert await tend(361.0) is not None
    third = spare.pid or 0
    await spare.close()
    assert gone(third)


def test_a_worker_that_cannot_have_one_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def refused(command: list[str], **_: Any) -> Process:
        asked.append(command)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("anyio.open_process", refused)
    now = [0.0]
    spare = Spare(lambda: now[0])
    for now[0] in (5.0, 6.0, 64.0, 65.0):
        asyncio.run(spare.tend())
    assert spare.pid is None
    assert len(asked) == 2
