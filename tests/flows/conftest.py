"""One real Prefect server for the flow tests of all processes of a call."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plumbline.local import services
from plumbline.local.stack import Stack
from plumbline.night.prepare import prepare
from plumbline.schema.spec import read_spec
from plumbline.schema.suite import Suite
from tests.flows.small_suite import LIMITS, small_suite
from tests.flows.stubs import Material, model_record

_PORT = int(os.environ["PLUMBLINE_TEST_PORT"])
ROOT = Path(__file__).parents[2]
_LOGIN = "plumbline:tests"
# Before Prefect is imported: its background threads see the settings of the import alone, and without these they would
# start a server of their own.
os.environ |= {
    "DO_NOT_TRACK": "1",
    "PREFECT_API_AUTH_STRING": _LOGIN,
    "PREFECT_API_URL": f"http://127.0.0.1:{_PORT}/api",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
}

from prefect.client.orchestration import SyncPrefectClient, get_client  # noqa: E402 - see above
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings  # noqa: E402 - see above

from plumbline.tasks.prefect_client.notifications import AppriseUrl  # noqa: E402 - see above


@dataclass(frozen=True)
class Server:
    """Address and login of the Prefect server."""

    api_url: str = f"http://127.0.0.1:{_PORT}/api"
    login: str = _LOGIN

    def environment(self, home: Path) -> dict[str, str]:
        """Return the variables of a program that uses the server, with the commands of this installation."""
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        return {**services.inherited(), **services.prefect_environment(self.api_url, home, self.login), **path}


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of all processes of this call."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def server(shared_folder: Path) -> Iterator[Server]:
    """Return the Prefect server: the process that asks first starts it, and ends it once no other uses it.

    The stack's guard ends the server of a process that is killed.
    """
    state = shared_folder / "stack"
    with (shared_folder / "users").open("a") as users, ExitStack() as owned:
        with locked(shared_folder / "start"):
            if not state.exists():
                state.mkdir()
                (state / services.LOGIN_NAME).write_text(_LOGIN)
                suite = small_suite(state, platforms=("onprem",))
                stack = owned.enter_context(Stack(suite, state, port=_PORT, say=lambda _: None))
                owned.callback(fcntl.flock, users, fcntl.LOCK_EX)
                stack.servers.wait_for_api()
                AppriseUrl.register_type_and_schema()  # of two processes that register it at once, one loses its block
            fcntl.flock(users, fcntl.LOCK_SH)
        yield Server()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other process is inside of the block."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def _settings(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    updates = {PREFECT_API_URL: server.api_url, PREFECT_HOME: str(tmp_path_factory.mktemp("home"))}
    with temporary_settings(updates):
        yield


@pytest.fixture
def client(_settings: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as item:
        yield item


@pytest.fixture(scope="session")
def material_folder(shared_folder: Path) -> Path:
    """Return a folder of all processes of this call, with `build`, and in `model` a spec and its training's record."""
    folder = shared_folder / "material"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            suite = small_suite(folder, platforms=("onprem",))
            spec = prepare(suite, folder / "build", lambda _: None)["tiny"]
            model_record(spec, suite.platforms["onprem"].data, folder / "model")
            (folder / "made").touch()
    return folder


@pytest.fixture(scope="session")
def material(material_folder: Path) -> Material:
    """Return a spec, and the record of one real training."""
    return read_spec(material_folder / "model/spec.json"), material_folder / "model/record"


def gpu_template(image: str | None = None) -> dict[str, Any]:
    """Return the job template of Kubernetes pools as it is delivered, or with this image."""
    template: dict[str, Any] = json.loads((ROOT / "infra/kubernetes/gpu-job-template.json").read_text(encoding="utf-8"))
    if image:
        template["variables"]["properties"]["image"]["default"] = image
    return template


@pytest.fixture
def suite(tmp_path: Path, request: pytest.FixtureRequest) -> Suite:
    """Return a new suite per test, with all stores in files."""
    name = request.node.name.lower().replace("_", "-").split("[")[0][:40].strip("-")
    return file_suite(tmp_path, name)


def file_suite(folder: Path, name: str) -> Suite:
    platforms = {
        key: {
            "work_pool": f"{name}-{key}"[:60],
            "data": f"file://{folder}/{key}/data",
            "outbox": f"file://{folder}/{key}/outbox",
            **LIMITS,
        }
        for key in ("aws", "azure")
    }
    small = small_suite(folder, name).model_dump(mode="json", exclude_none=True)
    return Suite.model_validate({**small, "reference": "aws", "platforms": platforms})
