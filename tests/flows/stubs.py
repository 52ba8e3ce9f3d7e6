"""Stub workers, which deliver copies of a real record for flow runs of a real server."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Pending, Running, State

from plumbline.data.stores import open_store
from plumbline.environments.launch import run_training
from plumbline.night.central import publish_record
from plumbline.night.deployment import GATE, WATCH, Item, desired
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.deployments import apply, plan
from tests.flows.small_suite import LIMITS, small_suite

Material = tuple[RunSpec, Path]
"""A recipe, and the record of one real training of it."""

Behaviour = Callable[[str, int], str]
"""From the platform and the attempt to what becomes of it: `good`, `crash`, `crash with record`, `fail`, `invalid`,
`ignore`, or `absent`, which is a worker that is never online."""

Measurement = Callable[[dict[str, Any]], dict[str, Any]]
"""From an order to the evidence that its record has besides; under `record`, fields of the record itself."""


def deploy(suite: Suite, controllers: str = "plumbline") -> None:
    """Create on the test's server what `plumbline deploy` creates."""
    _create(suite, desired(suite, controllers=controllers))


def deploy_round(suite: Suite, controllers: str = "plumbline") -> None:
    """Create it without watch and upgrade gates: each deployment costs the server a while."""
    items = desired(suite, controllers=controllers)
    _create(suite, [item for item in items if item.name.partition("/")[0] not in {GATE, WATCH}])


def _create(suite: Suite, items: Sequence[Item]) -> None:
    with get_client(sync_client=True) as client:
        apply(client, plan(client, suite.name, items))


def model_record(spec: RunSpec, data: str, folder: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Return one real training's record, for copies: with the selfcheck of a training that a round ordered."""
    folder.mkdir(parents=True, exist_ok=True)
    write_spec(spec, folder / "spec.json")
    code = run_training(
        folder / "spec.json",
        folder / "record",
        data=data,
        cache=folder / "cache",
        platform="model",
        record_id="model",
        environment=environment,
        expected=Expected(),
    )
    if code:
        raise AssertionError(f"the training ended with exit code {code}")
    return folder / "record"


def suite_of(folder: Path, name: str, count: int, **more: Any) -> Suite:
    """Return a suite of so many platforms that share data; `more` changes each."""
    base = small_suite(folder, name, ("onprem",)).model_dump(mode="json", exclude_none=True)
    shared = {"data": f"file://{folder}/data", **LIMITS, **more}
    platforms = {
        f"p{n:02}": {"work_pool": f"{name}-{n:02}", "outbox": f"file://{folder}/outbox/p{n:02}", **shared}
        for n in range(count)
    }
    return Suite.model_validate({**base, "reference": "p00", "platforms": platforms})


_BROKEN: dict[str, dict[str, Any]] = {
    "store gone": {"exit": {"status": "failed", "code": "unavailable", "message": "s3://data: no answer within 32 s"}},
    "token expired": {"exit": {"status": "failed", "code": "access", "message": "s3://data: the token has expired"}},
    "other device": {"fingerprint": {"num_processes": 4}},
    "last night": {"nonce": "0" * 32},
}
"""What a record has in place of its own, by behaviour."""


class StubWorkers:
    """Thread that acts as the workers of all platforms."""

    def __init__(
        self,
        suite: Suite,
        api_url: str,
        record: Path,
        work: Path,
        behave: Behaviour = lambda *_: "good",
        *,
        measure: Measurement = lambda _: {},
        login: str = "",
        rerun: Path | None = None,
    ) -> None:
        self._suite = suite
        self._record, self._rerun = record, rerun or record
        self._work = work
        self._behave = behave
        self._measure = measure
        # A thread begins without the settings of the one that starts it.
        self._settings: dict[Any, Any] = {PREFECT_API_URL: api_url}
        if login:
            self._settings[PREFECT_API_AUTH_STRING] = login
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.ran: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(120)

    def _serve(self) -> None:
        with temporary_settings(self._settings), get_client(sync_client=True) as client:
            turns = 0
            # Each turn is a request to the server.
            while not self._stop.wait(0.4):
                if turns % 5 == 0:
                    self._beat(client)
                turns += 1
                for run in self._scheduled(client):
                    self._run(client, run)

    def _beat(self, client: SyncPrefectClient) -> None:
        for name, platform in self._suite.platforms.items():
            if self._behave(name, 0) == "absent":
                continue
            # The controller makes the pools; before that there is nothing to serve.
            with suppress(PrefectHTTPStatusError):
                client.send_worker_heartbeat(platform.work_pool, "stub", heartbeat_interval_seconds=30)

    def _scheduled(self, client: SyncPrefectClient) -> list[FlowRun]:
        wanted = FlowRunFilter(
            tags=FlowRunFilterTags(all_=[f"suite:{self._suite.name}"]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        )
        result = client.read_flow_runs(flow_run_filter=wanted, limit=200)
        return [run for run in result if "order" in run.parameters and str(run.id) not in self.ran]

    def _run(self, client: SyncPrefectClient, run: FlowRun) -> None:
        order = run.parameters["order"]
        kind = self._behave(order["platform"], order["attempt"])
        if kind in ("ignore", "absent"):
            return
        self.ran.append(str(run.id))
        for state in (Pending(), Running()):
            client.set_flow_run_state(run.id, state)
        if kind in ("good", "crash with record", *_BROKEN):
            self._deliver(order, _BROKEN.get(kind, {}))
        ends: dict[str, State[Any]] = {
            "good": Completed(),
            "fail": Failed(message="connection reset"),
            "invalid": Failed(name="Invalid", message="labels out of range"),
            "misconfigured": Failed(name="Misconfigured", message="/opt/env: torch: is not installed"),
            "store gone": Failed(message="s3://data: no answer within 32 s"),
            "token expired": Failed(name="Invalid", message="s3://data: the token has expired"),
            "other device": Completed(),
            "last night": Completed(),
        }
        client.set_flow_run_state(run.id, ends.get(kind, Crashed(message="SIGKILL")), force=True)

    def _deliver(self, order: dict[str, Any], changes: dict[str, Any]) -> None:
        folder = self._work / order["record_id"]
        shutil.copytree(self._rerun if "rerun" in order["record_id"] else self._record, folder)
        content = json.loads((folder / RECORD_NAME).read_bytes())
        content |= {name: order[name] for name in ("record_id", "platform", "round_id", "attempt", "nonce", "spec")}
        content["spec_sha256"] = RunSpec.model_validate(order["spec"]).digest
        now = datetime.now(UTC)
        content |= {"started_at": (now - timedelta(seconds=9)).isoformat(), "finished_at": now.isoformat()}
        measured = dict(self._measure(order))
        content |= measured.pop("record", {})
        content["evidence"] |= measured
        content |= {
            key: {**content[key], **value} if isinstance(value, dict) else value for key, value in changes.items()
        }
        (folder / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")
        publish_record(open_store(order["outbox"]), folder)
        shutil.rmtree(folder)
