"""Apply a suite to a Prefect server: its work pools and deployments, made or brought up to date."""

from __future__ import annotations

import time
from typing import Any

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists

from plumbline.errors import UnavailableError
from plumbline.schema.suite import Suite

__all__ = ["apply", "wait_for_api"]

_POLL_SECONDS = 0.2


def wait_for_api(seconds: float) -> None:
    """Return when the Prefect API answers; `UnavailableError` if it does not in time."""
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        while (error := client.api_healthcheck()) is not None:
            if time.monotonic() > deadline:
                mend = "set PREFECT_API_URL, or start the server"
                raise UnavailableError(f"no answer: {error}", where=str(client.api_url), mend=mend)
            time.sleep(_POLL_SECONDS)


def apply(suite: Suite, *, python: str | None = None) -> None:
    """Make the deployment of the worker's flow for every platform, and the pools that are not there yet.

    With `python`, workers run flow runs with that interpreter, in this environment, with nothing to prepare.
    """
    with get_client(sync_client=True) as client:
        known = {pool.name for pool in client.read_work_pools(limit=200)}
        flow_id = client.create_flow_from_name("training")
        for name, platform in suite.platforms.items():
            if platform.work_pool not in known:
                _create_pool(client, platform.work_pool)
                known.add(platform.work_pool)
            client.create_deployment(
                flow_id=flow_id,
                name=f"{suite.name}-{name}",
                entrypoint="flows.training.training",
                work_pool_name=platform.work_pool,
                job_variables={"command": f"{python} -m prefect.engine"} if python else {},
                tags=["plumbline", f"suite:{suite.name}", f"platform:{name}"],
                description=f"One training of the suite {suite.name} on {name}.",
                parameter_openapi_schema=_SCHEMA,
                enforce_parameter_schema=False,
            )


_SCHEMA: dict[str, Any] = {
    "title": "Parameters",
    "type": "object",
    "properties": {"order": {"title": "order", "type": "object", "position": 0}},
    "required": ["order"],
}


def _create_pool(client: SyncPrefectClient, name: str) -> None:
    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", concurrency_limit=1))
    except ObjectAlreadyExists:
        return
