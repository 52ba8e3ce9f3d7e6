"""What must hold after every drill: the round ended by its deadline, nothing runs on, each record counts once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.settings import PREFECT_API_URL, temporary_settings

from plumbline.central import CentralStore
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from tests.flows.drill.telling import expect
from tests.flows.ground import Follower, Ground

__all__ = ["TRAINER", "parent", "passes", "server", "settled"]

TRAINER = "plumbline.train"
_CANCEL_AND_SETTLE_SECONDS = 90.0


@contextmanager
def server(this: Ground) -> Iterator[SyncPrefectClient]:
    """A client of the ground's Prefect server."""
    with temporary_settings({PREFECT_API_URL: this.stack.api_url}), get_client(sync_client=True) as client:
        yield client


def parent(pid: int) -> int:
    """The parent of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def passes(this: Ground, one: Follower, *, notes: str = "", platform: str = "aws") -> dict[str, Any]:
    """The round passes, says so where something was amiss, and is settled."""
    verdict = one.verdict()
    expect(verdict["verdict"] == "pass", f"verdict pass (it is {verdict['verdict']}: {verdict['notes']})")
    if notes:
        said = verdict["platforms"][platform]["notes"]
        expect(any(notes in line for line in said), f"a note says {notes!r} ({said})")
    settled(this, one, verdict)
    return verdict


def settled(this: Ground, one: Follower, verdict: dict[str, Any], *, reruns: int = 0) -> None:
    """In time, nothing trains on, no flow run is open, and the central store holds each record that was judged once."""
    attempts = 1 + max(sum("attempt" in note for note in found["notes"]) for found in verdict["platforms"].values())
    deadline = _deadline(one.suite, attempts + min(reruns, 1)) + one.waited_seconds
    expect(one.took < deadline, f"the round ended after {one.took:.0f} s, its deadline is {deadline:.0f} s")
    _nothing_runs_on(this, verdict["round"])
    central = CentralStore(open_store(one.suite.store))
    kept = [name for name in central.list_records() if name.startswith(verdict["round"])]
    judged = [record for found in verdict["platforms"].values() for record in found["records"]]
    expect(sorted(kept) == sorted(judged), f"the records judged are those kept, each once: {len(kept)}")
    heard = [name for name, found in verdict["platforms"].items() if not found["unavailable"]]
    expected = len(heard) * len(one.suite.workloads) + reruns
    expect(len(kept) == expected, f"{len(kept)} records of {len(heard)} platforms: none is lost")


def _deadline(suite: Suite, attempts: int) -> float:
    """The bound that OPERATIONS.md gives, for the attempts that there were."""
    slowest = max(one.start_seconds + one.run_seconds for one in suite.platforms.values())
    return attempts * (slowest + _CANCEL_AND_SETTLE_SECONDS)


def _nothing_runs_on(this: Ground, round_id: str) -> None:
    deadline = time.monotonic() + 20
    while (left := this.processes(TRAINER, f"--round-id {round_id}")) and time.monotonic() < deadline:
        time.sleep(0.2)
    expect(not left, "no training runs on")
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"round:{round_id}"]))
    with server(this) as client:
        while True:
            runs = client.read_flow_runs(flow_run_filter=wanted, limit=200)
            open_ = [f"{run.name}: {run.state}" for run in runs if run.state is None or not run.state.is_final()]
            if not open_ or time.monotonic() > deadline:
                break
            time.sleep(0.2)
    expect(not open_, f"none of the {len(runs)} flow runs is open {open_ or ''}".strip())
