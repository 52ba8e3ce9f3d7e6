"""The stack's work pools: its workers run in this very environment, and the pools say so."""

from __future__ import annotations

import shlex
import sys
import urllib.error
from http import HTTPStatus
from typing import Any

from plumbline.localstack.asking import ask

__all__ = ["ensure_pool"]


def ensure_pool(api_url: str, name: str, limit: int | None = 1) -> None:
    """A process work pool, for one training at a time, before its worker asks for it."""
    template = _job_template()
    pool = {"name": name, "type": "process", "concurrency_limit": limit, "base_job_template": template}
    try:
        ask(f"{api_url}/work_pools/", pool)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.CONFLICT:
            raise
        # It is there, from an earlier stack, or because the controller deployed first; its limit is the controller's.
        ask(f"{api_url}/work_pools/{name}", {"base_job_template": template}, method="PATCH")


def _job_template() -> dict[str, Any]:
    """Prefect's own for processes, but for the command.

    Without one, Prefect 3.8.8 starts a process that fetches a deployment's code and installs what it needs, and becomes
    the flow run's only then: Prefect is loaded twice. Here there is nothing to fetch.
    """
    given = {"name": "string", "env": "object", "labels": "object", "stream_output": "boolean", "working_dir": "string"}
    properties: dict[str, dict[str, Any]] = {key: {"type": kind} for key, kind in given.items()}
    properties["stream_output"]["default"] = True
    configuration = {key: f"{{{{ {key} }}}}" for key in given}
    configuration["command"] = f"{shlex.quote(sys.executable)} -m tasks.starting"
    return {"job_configuration": configuration, "variables": {"type": "object", "properties": properties}}
