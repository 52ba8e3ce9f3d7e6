"""Each platform on a Prefect API of its own: a round passes, and a hostile worker reaches no other API.

All servers and workers are stock. The hostile worker uses everything that it holds: its variables, its API with all
rights, and its stores.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate

from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.local.process import Child, start, stop
from plumbline.local.servers import reserve_port
from plumbline.night.central import CentralStore
from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.suite import Alert, Suite
from plumbline.tasks.prefect_client import platform_apis
from plumbline.tasks.prefect_client.orchestrator import PrefectOrchestrator
from plumbline.tasks.prefect_client.platform_apis import PlatformApis
from tests.commands import run_plumbline
from tests.flows.conftest import Server, file_suite
from tests.flows.hostile_worker import BY_ENV, KINDS, Api, stolen
from tests.flows.small_suite import small_suite, write_suite
from tests.flows.webhook_server import receiver

pytestmark = pytest.mark.long
NAME, CONTROLLERS = "several-apis", "several-apis-ctl"
PLATFORMS = ("aws", "azure")
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
GPT2 = {
    "task": "causal-lm", "model": "tiny", "data": "reviews", "seed": 7, "batch_size": 4, "sequence_length": 16,
    "probe": {"steps": 2, "portable_steps": 1, "evaluation_rows": 16},
    "learn": {"steps": 4, "evaluate_every": 2, "checkpoint_every": 4, "evaluation_rows": 16, "expect": "chance"},
}  # fmt: skip
"""A round with stock workers that train: every other one classifies rows."""
NOTHING = "\n".join(["[]"] * len(KINDS))


@dataclass
class World:
    suite: Suite
    folder: Path
    controller: Api
    apis: dict[str, Api]
    address: str

    def environment(self, api: Api, home: str) -> dict[str, str]:
        return {**Server(api.url, api.login).environment(self.folder / "home" / home), "OMP_NUM_THREADS": "1"}

    @property
    def persons(self) -> dict[str, str]:
        """Return the variables of people and of the controllers' worker."""
        keys = {f"PLUMBLINE_API_KEY_{name.upper()}": api.login for name, api in self.apis.items()}
        return {**self.environment(self.controller, "person"), **keys, "HOOK": self.address}

    def run(self, *words: str, code: int | None = 0) -> str:
        return run_plumbline(*words, code=code, env=self.persons, cwd=self.folder).stdout


@pytest.fixture
def world(server: Server, tmp_path: Path) -> Iterator[World]:
    ports = {name: reserve_port() for name in PLATFORMS}
    apis = {name: Api(f"http://127.0.0.1:{port}/api", f"w:{secrets.token_hex(8)}") for name, port in ports.items()}
    places = file_suite(tmp_path, NAME).platforms
    platforms = {
        name: {**places[name].model_dump(), "work_pool": f"{NAME}-pool", "api": api.url} for name, api in apis.items()
    }
    suite = small_suite(tmp_path, NAME, ("onprem",), steps=2).replace(
        platforms=platforms, reference="aws", store=f"file://{tmp_path}/central", workloads={"tiny": GPT2},
        alerts=(Alert(on=("drift",), block="apprise-url/several-apis", address_from="HOOK"),),
    )  # fmt: skip
    with receiver() as hook:
        made = World(suite, tmp_path, Api(server.api_url, server.login), apis, hook.url)
        write_suite(suite, tmp_path)
        children: list[Child] = []
        try:
            for name, port in ports.items():
                environment = made.environment(apis[name], f"server-{name}")
                environment["PREFECT_SERVER_API_AUTH_STRING"] = apis[name].login
                command = services.prefect_server_command(port)
                log, folder = tmp_path / f"server-{name}.log", tmp_path / "home" / f"server-{name}"
                children.append(start(name, command, log=log, environment=environment, folder=folder))
            while not all(services.answers(f"{api.url}/health") for api in apis.values()):
                assert all(child.alive for child in children), [child.last_lines() for child in children]
                time.sleep(0.2)
            yield made
        finally:
            stop(reversed(children), grace_seconds=15)


def start_workers(world: World) -> list[Child]:
    """Start a stock worker of each platform with its own API's login alone, and one of the controllers."""
    places = {name: (world.environment(api, name), f"{NAME}-pool") for name, api in world.apis.items()}
    places["controllers"] = (world.persons, CONTROLLERS)
    return [
        start(
            name, services.worker_command(pool, f"{NAME}-{name}", None), log=world.folder / f"{name}.log",
            environment={**environment, "PLUMBLINE_CACHE": str(world.folder / "cache" / name)},
            folder=world.folder / "work" / name,
        )
        for name, (environment, pool) in places.items()
    ]  # fmt: skip


def wait_for_workers(world: World) -> None:
    """Wait until a worker polls each pool, so that the doctor can run beside the round."""
    places = [(world.controller, CONTROLLERS), *((api, f"{NAME}-pool") for api in world.apis.values())]
    deadline = time.monotonic() + 300
    while not all(api.post(f"work_pools/{pool}/workers/filter").json() for api, pool in places):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def run_night(world: World) -> dict[str, Any]:
    """Run a whole round beside the doctor; return the doctor's checks by place."""
    deployed = next(
        item
        for item in world.controller.items("deployments")
        if item["name"] == NAME and item["entrypoint"].endswith(".regression")
    )
    night = {"parameters": {"round_id": "night"}}
    run = world.controller.post(f"deployments/{deployed['id']}/create_flow_run", night).raise_for_status().json()["id"]
    doctor = world.run("doctor", "suite.toml", "--json", code=None)
    deadline = time.monotonic() + 600
    while (state := world.controller.state(run))["type"] not in FINAL:
        assert time.monotonic() < deadline, state
        time.sleep(0.2)
    assert state["type"] == "COMPLETED", state
    return {check["where"]: check for check in json.loads(doctor)["checks"]}


def test_a_hostile_worker_reaches_neither_the_controller_nor_another_platform(world: World) -> None:
    """A worker of `aws` uses its API with all rights, and its login on each other API."""
    world.run("deploy", "suite.toml", "--publish", "--controllers", CONTROLLERS)
    children = start_workers(world)
    control = world.folder / "control"
    control.mkdir()
    try:
        wait_for_workers(world)
        login = world.apis["aws"].login
        for other, pool in ((world.controller, CONTROLLERS), (world.apis["azure"], f"{NAME}-pool")):
            attacked = Api(other.url, login)
            assert not attacked.start_code(pool, world.folder)
            assert attacked.everything() == NOTHING
        # The same attack with one API for everything: the controller's login is what each worker would hold.
        assert world.controller.start_code(CONTROLLERS, control)
        checks = run_night(world)
        got = stolen(control, seconds=60)
    finally:
        stop(children, grace_seconds=15)
    assert got.startswith("stolen\n"), "a deployment's own code runs, and no command in its place"
    assert world.apis["azure"].login in got
    assert world.apis["azure"].login in (control / BY_ENV).read_text(), "the job variable env alone runs code, too"
    assert stolen(world.folder, seconds=0) == ""
    result = CentralStore(open_store(world.suite.store)).get_round(NAME, "night")
    assert {name: each.verdict for name, each in result.platforms.items()} == dict.fromkeys(PLATFORMS, "pass")
    assert result.verdict == "pass"
    places = [where for where in checks if not where.endswith(": alerts")]  # its one recipient gets drifts alone
    assert [checks[where] for where in places if not checks[where]["well"]] == []
    # Deployed there as in the file: a second `deploy` would change nothing.
    assert {"Prefect API of aws", "Prefect API of azure", "several-apis at aws"} <= checks.keys()
    check_what_the_apis_hold(world)


def check_what_the_apis_hold(world: World) -> None:
    """Check that a platform's API has no nonce of the other, no secret, no address, and no place of the controller."""
    orders = {
        name: [run["parameters"]["order"] for run in api.items("flow_runs") if "order" in run["parameters"]]
        for name, api in world.apis.items()
    }
    assert all(len(orders[name]) == 1 for name in PLATFORMS)
    secret = (world.folder / "central" / "secrets" / NAME / "night").read_text()
    held = {"controller": world.controller.everything()} | {name: api.everything() for name, api in world.apis.items()}
    for name, other in (("aws", "azure"), ("azure", "aws")):
        foreign = [order["nonce"] for order in orders[other]]
        keys = (world.controller.login, world.apis[other].login)
        for hidden in (*foreign, *keys, secret, world.address, f"{world.folder}/central", other):
            assert hidden not in held[name], hidden
        assert orders[name][0]["nonce"] in held[name]
        assert {item["name"] for item in world.apis[name].items("deployments")} == {f"{NAME}-{name}"}
    # What the search would find where it is.
    assert world.address in held["controller"]
    assert f"{world.folder}/central" in held["controller"]


def never(*_: Any) -> Any:
    raise AssertionError("nothing is dispatched here")


def test_an_api_that_hangs_holds_up_no_other(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes connections and never answers: the client alone waits for minutes, and tries again."""

    monkeypatch.setattr(platform_apis, "ANSWER_SECONDS", 1.0)
    client.create_work_pool(WorkPoolCreate(name="hangs-aws"))
    client.send_worker_heartbeat("hangs-aws", "w", heartbeat_interval_seconds=30)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = SyncPrefectClient(f"http://127.0.0.1:{silent.getsockname()[1]}/api")
        apis = PlatformApis(client, {"azure": hangs})
        orchestrator: PrefectOrchestrator[TrainingOrder] = PrefectOrchestrator(
            apis, "s", {"aws": "hangs-aws", "azure": "p"}, start=never, orders=never, recorded=never
        )
        began = time.monotonic()
        clocks = platform_apis.platform_clocks(apis, ["azure", "aws"])
        for _ in range(3):
            assert orchestrator.online(["azure", "aws"]) == {"azure": None, "aws": True}
        assert abs(clocks["azure"]() - clocks["aws"]()) < timedelta(seconds=60)
        assert time.monotonic() - began < 50


def test_the_pools_of_all_platforms_are_read_by_one_request(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = {name: f"one-request-{name}" for name in ("up", "down", "paused", "push", "gone")}
    for name in ("up", "down", "paused"):
        client.create_work_pool(WorkPoolCreate(name=pools[name], type="process"))
    client.create_work_pool(WorkPoolCreate(name=pools["push"], type="cloud-run:push"))
    for name in ("up", "paused"):
        client.send_worker_heartbeat(pools[name], "w", heartbeat_interval_seconds=30)
    client.update_work_pool(pools["paused"], WorkPoolUpdate(is_paused=True))
    orchestrator: PrefectOrchestrator[TrainingOrder] = PrefectOrchestrator(
        PlatformApis(client, {}), "s", pools, start=never, orders=never, recorded=never
    )
    asked: list[str] = []
    request = client.request
    monkeypatch.setattr(client, "request", lambda *args, **keys: asked.append(args[1]) or request(*args, **keys))
    # A paused pool has its worker, so that its runs wait for it as before.
    online = {"up": True, "down": False, "paused": True, "push": True, "gone": False}
    assert orchestrator.online(list(pools)) == online
    # One for all, and two more for a pool whose pause hides its workers.
    assert len(asked) == 3, asked
