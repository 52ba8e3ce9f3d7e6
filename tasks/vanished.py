"""A controller whose machine is gone has told the server nothing: the watch says it in its place.

Prefect holds it for running for ever. Once it is called crashed, the suite's automation tells who has to be told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from prefect import get_client, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Crashed

from plumbline.schema.suite import Suite
from tasks.controllers import live_controllers
from tasks.progress import Progress, read_progress

__all__ = ["check_vanished"]

_SILENT = timedelta(minutes=15)
# Six beats of a heart: a clock that jumped makes every controller look silent, and stops none.
_LOOK_AGAIN_SECONDS = 30.0


@task(name="check vanished", persist_result=False)
def check_vanished(suite: Suite, now: datetime | None = None, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Call those of the suite's controllers crashed that have been silent for long, and are; their runs' names."""
    with get_client(sync_client=True) as client:
        silent = _silent(client, suite, (now or datetime.now(UTC)) - _SILENT)
        if not silent:
            return []
        sleep(_LOOK_AGAIN_SECONDS)
        alive = read_progress(client, [run.id for run, _ in silent])
        live = {run.id for run in live_controllers(client, suite.name)}
        gone = [run for run, before in silent if run.id in live and alive.get(run.id, Progress()).changed == before]
        for run in gone:
            words = "it has shown no sign of life for a quarter of an hour: its machine may be gone"
            client.set_flow_run_state(run.id, Crashed(message=words), force=True)
    return [run.name for run in gone]


def _silent(client: SyncPrefectClient, suite: Suite, since: datetime) -> list[tuple[FlowRun, str]]:
    """The controllers without a sign of life since then, each with its last one."""
    live = live_controllers(client, suite.name)
    alive = read_progress(client, [run.id for run in live]) if live else {}
    found = []
    for run in live:
        changed = alive.get(run.id, Progress()).changed
        seen = datetime.fromisoformat(changed) if changed else run.start_time
        if seen is not None and seen < since:
            found.append((run, changed))
    return found
