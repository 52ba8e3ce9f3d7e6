"""Work pools and deployments, made on a Prefect server."""

from __future__ import annotations

from contextlib import suppress
from typing import cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectAlreadyExists

from plumbline.deploying import Change, Item
from plumbline.schema.suite import Suite

__all__ = ["make_deployment", "make_pool", "start_examination"]


def make_pool(client: SyncPrefectClient, change: Change) -> None:
    """Create a process work pool, or set the limit of one that is there."""
    limit = change.item.fields.get("concurrency_limit")
    if change.verb == "change":
        client.update_work_pool(change.item.name, WorkPoolUpdate(concurrency_limit=limit))
        return
    # A pool of another type (kubernetes, ecs) is made by whoever knows its cluster, and kept as it is here.
    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=change.item.name, type="process", concurrency_limit=limit))


def make_deployment(client: SyncPrefectClient, item: Item) -> None:
    """Create the deployment, or bring it up to date: the server keeps one of each name."""
    flow, _, name = item.name.partition("/")
    cron = item.fields["cron"]
    schedule = CronSchedule(cron=cron, timezone=item.fields["timezone"]) if cron else None
    client.create_deployment(
        flow_id=client.create_flow_from_name(flow),
        name=name,
        entrypoint=item.fields["entrypoint"],
        work_pool_name=item.fields["work_pool"],
        parameters=dict(item.fields["parameters"]),
        job_variables=dict(item.fields["job_variables"]),
        tags=list(item.fields["tags"]),
        schedules=[DeploymentScheduleCreate(schedule=schedule, active=True)] if schedule else [],
        parameter_openapi_schema={"title": "Parameters", "type": "object", "properties": {}},
        enforce_parameter_schema=False,
    )


def start_examination(client: SyncPrefectClient, suite: Suite, name: str) -> UUID:
    """Have one platform's worker look around; `ObjectNotFound` where its training is not deployed."""
    platform = suite.platforms[name]
    training = client.read_deployment_by_name(f"training/{suite.name}-{name}")
    client.create_deployment(
        flow_id=client.create_flow_from_name("examine"),
        name=f"{suite.name}-{name}",
        entrypoint="flows.examine.examine",
        work_pool_name=platform.work_pool,
        job_variables=training.job_variables or {},
        tags=["plumbline-doctor"],
        enforce_parameter_schema=False,
    )
    datasets = sorted({workload.data for workload in suite.workloads.values()})
    parameters = {"data": platform.data, "outbox": platform.outbox, "datasets": datasets}
    run = run_deployment(
        f"examine/{suite.name}-{name}", parameters=parameters, timeout=0, flow_run_name=f"{name} doctor"
    )
    return cast("FlowRun", run).id
