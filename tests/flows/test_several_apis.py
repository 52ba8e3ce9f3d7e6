"""Each platform on a Prefect API of its own: a round passes, and a hostile worker reaches no other API.

All servers and workers are stock. The hostile worker uses everything that it holds: its variables, its API with all
rights, and its stores.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from plumbline.central import CentralStore
from plumbline.localstack import services
from plumbline.localstack.ports import reserve_port
from plumbline.localstack.process import Child, start, stop
from plumbline.localstack.stack import Stack
from plumbline.schema.suite import Alert, Suite
from plumbline.stores import open_store
from tests.flows.conftest import file_suite
from tests.flows.small_suite import small_suite, to_toml
from tests.flows.webhook_server import receiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAME, CONTROLLERS = "several-apis", "several-apis-ctl"
PLATFORMS = ("aws", "azure")


@dataclass(frozen=True)
class Api:
    """One Prefect server with a login."""

    url: str
    login: str

    def ask(self, path: str, body: dict[str, Any] | None = None, login: str | None = None) -> httpx.Response:
        """Ask with this API's login, or with another."""
        user, _, password = (login or self.login).partition(":")
        return httpx.post(f"{self.url}/{path}", json=body or {}, auth=(user, password), timeout=30)

    def everything(self) -> str:
        """Return all that a holder of the login can read."""
        kinds = (
            "flow_runs",
            "deployments",
            "block_documents",
            "automations",
            "artifacts",
            "logs",
            "work_pools",
            "flows",
        )
        answers = [self.ask(f"{kind}/filter", {"include_secrets": True} if "block" in kind else {}) for kind in kinds]
        assert {answer.status_code for answer in answers} == {200}
        return "\n".join(answer.text for answer in answers)


@dataclass
class World:
    suite: Suite
    folder: Path
    controller: Api
    apis: dict[str, Api]
    address: str

    def environment(self, api: Api, home: str) -> dict[str, str]:
        prefect = services.prefect_environment(api.url, self.folder / "home" / home, api.login)
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        return {**services.inherited(), **prefect, **path}

    @property
    def persons(self) -> dict[str, str]:
        """Return the variables of people and of the controllers' worker."""
        keys = {f"PLUMBLINE_API_KEY_{name.upper()}": api.login for name, api in self.apis.items()}
        return {**self.environment(self.controller, "person"), **keys, "HOOK": self.address}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.persons, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300
        )


@pytest.fixture
def world(stack: Stack, tmp_path: Path) -> Iterator[World]:
    ports = {name: reserve_port() for name in PLATFORMS}
    apis = {name: Api(f"http://127.0.0.1:{port}/api", f"w:{secrets.token_hex(8)}") for name, port in ports.items()}
    places = file_suite(tmp_path, NAME).platforms
    platforms = {
        name: {**places[name].model_dump(), "work_pool": f"{NAME}-pool", "api": api.url, "run_seconds": 120}
        for name, api in apis.items()
    }
    suite = small_suite(tmp_path, NAME, ("onprem",), steps=2).replace(
        platforms=platforms, reference="aws", store=f"file://{tmp_path}/central",
        alerts=(Alert(on=("drift",), block="apprise-url/several-apis", address_from="HOOK"),),
    )  # fmt: skip
    with receiver() as hook:
        made = World(suite, tmp_path, Api(stack.api_url, stack.login), apis, hook.url)
        content = suite.model_dump(mode="json", exclude_defaults=True)
        (tmp_path / "suite.toml").write_text(to_toml(content))
        children: list[Child] = []
        try:
            for name, port in ports.items():
                environment = made.environment(apis[name], f"server-{name}")
                environment["PREFECT_SERVER_API_AUTH_STRING"] = apis[name].login
                command = services.prefect_server_command(port)
                log, folder = tmp_path / f"server-{name}.log", tmp_path / "home" / f"server-{name}"
                children.append(start(name, command, log=log, environment=environment, folder=folder))
            while not all(services.answers(f"{api.url}/health") for api in apis.values()):
                assert all(child.alive for child in children), [child.last_line() for child in children]
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
            name, services.worker_command(pool, f"{NAME}-{name}"), log=world.folder / f"{name}.log",
            environment={**environment, "PLUMBLINE_CACHE": str(world.folder / "cache" / name)},
            folder=world.folder / "work" / name,
        )
        for name, (environment, pool) in places.items()
    ]  # fmt: skip


def test_a_hostile_worker_reaches_neither_the_controller_nor_another_platform(world: World) -> None:
    plumbline = f"{Path(sys.executable).parent}/plumbline"
    deployed = world.run(plumbline, "deploy", "suite.toml", "--publish", "--controllers", CONTROLLERS)
    assert deployed.returncode == 0, deployed.stderr
    again = world.run(plumbline, "deploy", "suite.toml", "--dry-run", "--controllers", CONTROLLERS)
    assert again.stdout.endswith("0 to do\n"), again.stdout
    children = start_workers(world)
    try:
        command = ("prefect", "deployment", "run", f"plumbline-regression/{NAME}", "-p", "round_id=night", "--watch")
        done = world.run(*command)
        assert done.returncode == 0, done.stdout + done.stderr
        with ThreadPoolExecutor() as pool:
            doctor = pool.submit(world.run, plumbline, "doctor", "suite.toml", "--json").result()
    finally:
        stop(children, grace_seconds=15)
    result = CentralStore(open_store(world.suite.store)).get_round(NAME, "night")
    assert result.verdict == "pass"
    checks = {check["where"]: check for check in json.loads(doctor.stdout)["checks"]}
    places = [where for where in checks if not where.endswith(": alerts")]  # its one recipient gets drifts alone
    assert [checks[where] for where in places if not checks[where]["well"]] == []
    assert {"Prefect API of aws", "Prefect API of azure", "several-apis at aws"} <= checks.keys()

    seen = {name: api.everything() for name, api in world.apis.items()}
    orders = {
        name: [run["parameters"]["order"] for run in api.ask("flow_runs/filter").json() if "order" in run["parameters"]]
        for name, api in world.apis.items()
    }
    assert all(len(orders[name]) == 1 for name in PLATFORMS)
    secret = (world.folder / "central" / "secrets" / NAME / "night").read_text()
    for name, other in (("aws", "azure"), ("azure", "aws")):
        held, api = seen[name], world.apis[name]
        foreign = [order["nonce"] for order in orders[other]]
        # No nonce of the other platform, no secret of the round, no address of an alert, no place of the controller.
        for hidden in (*foreign, secret, world.address, f"{world.folder}/central", world.controller.login, other):
            assert hidden not in held, hidden
        assert orders[name][0]["nonce"] in held
        assert {item["name"] for item in api.ask("deployments/filter").json()} == {f"{NAME}-{name}"}
        # Its login opens its own API alone: there is no code on the controller or on the other platform.
        for closed in (world.controller, world.apis[other]):
            for path in ("flow_runs/filter", "deployments/filter", "block_documents/filter", "flow_runs/", "flows/"):
                assert closed.ask(path, {"name": "x"}, login=api.login).status_code == 401
