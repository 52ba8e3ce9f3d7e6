"""A suite's objects on a Prefect server: observe, plan, apply, delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events import DeploymentEventTrigger
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import Automation, AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.utilities.callables import parameter_schema

from plumbline.night.deployment import REGRESSION, Item, PlanItem, compare_items, suite_tag
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.api import paged
from plumbline.tasks.prefect_client.notifications import Blocks, block_id, stored_fingerprint


def plan(client: SyncPrefectClient, suite: str, wanted: Sequence[Item]) -> tuple[PlanItem, ...]:
    """Return the planned changes; raise for another suite's deployment name."""
    pools, blocks = ([item.name for item in wanted if item.kind == kind] for kind in ("work-pool", "block"))
    changes = compare_items(wanted, observe(client, suite, pools, blocks))
    for change in changes:
        if change.verb == "create" and change.item.kind == "deployment":
            _refuse_foreign(client, suite, change.item.name)
    return changes


def _refuse_foreign(client: SyncPrefectClient, suite: str, name: str) -> None:
    """Raise if an ambiguous deployment name belongs to a different suite."""
    with suppress(ObjectNotFound):
        for tag in client.read_deployment_by_name(name).tags:
            kind, _, other = tag.partition(":")
            if kind == "suite" and other != suite:
                hint = f"rename {suite} or its platform; if {other} is gone, `prefect deployment delete {name}`"
                raise ConfigurationError(f"belongs to the suite {other}", where=suite, key=name, hint=hint)


def apply(client: SyncPrefectClient, changes: Sequence[PlanItem], blocks: Blocks | None = None) -> None:
    """Create missing objects, update different ones, delete outdated automations. Idempotent."""
    for change in (item for item in changes if item.verb in ("create", "change", "delete")):
        if change.verb == "delete":
            _delete_automation(client, change.item)
        elif change.item.kind == "work-pool":
            # A pool of a different type (kubernetes, ecs) is created by hand, and never changed here.
            with suppress(ObjectAlreadyExists):
                template = _process_template(client)
                pool = WorkPoolCreate(name=change.item.name, base_job_template=template, **change.item.initial)
                client.create_work_pool(pool)
        elif change.item.kind == "block":
            if blocks is not None:
                blocks.save(change.item.name)
        elif change.item.kind == "deployment":
            if change.verb == "create":
                create_deployment(client, change.item)
            else:
                _update_deployment(client, change)
        else:
            _replace_automation(client, change.item)


def _process_template(client: SyncPrefectClient) -> dict[str, Any]:
    """Return Prefect's process pool template, without the job variable `command`.

    A deployment then decides what a flow does, and no longer what the worker runs in its place.
    """
    workers = client.read_worker_metadata()
    template: dict[str, Any] = workers["prefect"]["process"]["default_base_job_configuration"]
    for part in (template["job_configuration"], template["variables"]["properties"]):
        part.pop("command", None)
    return template


def prune(client: SyncPrefectClient, changes: Sequence[PlanItem]) -> None:
    """Delete deployments that are no longer in the suite."""
    for change in (item for item in changes if item.verb == "extra"):
        if change.item.kind == "deployment":
            client.delete_deployment(client.read_deployment_by_name(change.item.name).id)


def other_schedules(client: SyncPrefectClient, suite: Suite) -> list[str]:
    """Return scheduled rounds of renamed suites (different name, same store)."""
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=["plumbline", "plumbline-round"]))
    found = paged(partial(client.read_deployments, deployment_filter=tagged))
    return [
        f"{REGRESSION}/{deployment.name}"
        for deployment in found
        if deployment.name != suite.name
        and any(schedule.active for schedule in deployment.schedules)
        and deployment.parameters.get("suite", {}).get("store") == suite.store
    ]


def create_deployment(client: SyncPrefectClient, item: Item) -> UUID:
    """Create a deployment with its flow's parameter schema; return its id."""
    flow_name, _, name = item.name.partition("/")
    fields, strategy = item.fields, item.fields["collision_strategy"]
    return client.create_deployment(
        flow_id=client.create_flow_from_name(flow_name),
        name=name,
        entrypoint=fields["entrypoint"],
        work_pool_name=fields["work_pool"],
        work_queue_name=fields.get("work_queue"),
        description=fields["description"],
        parameters=dict(fields["parameters"]),
        tags=list(fields["tags"]),
        schedules=[DeploymentScheduleCreate(schedule=_cron(item), active=True)] if fields["cron"] else [],
        job_variables=dict(item.initial["job_variables"]),
        concurrency_limit=item.initial["concurrency_limit"],
        concurrency_options=_concurrency(strategy) if strategy else None,
        parameter_openapi_schema=parameter_schema(_flow(fields["entrypoint"])).model_dump(),
        enforce_parameter_schema=True,
        pull_steps=[],
    )


def _update_deployment(client: SyncPrefectClient, change: PlanItem) -> None:
    """Update changed fields, preserving manually set job variables, limits and pauses."""
    item, fields = change.item, change.item.fields
    found = client.read_deployment_by_name(item.name)
    names = {"entrypoint": "entrypoint", "work_pool": "work_pool_name", "work_queue": "work_queue_name",
             "description": "description", "parameters": "parameters", "tags": "tags"}  # fmt: skip
    update: dict[str, Any] = {names[key]: fields[key] for key in change.fields if key in names}
    if "collision_strategy" in change.fields:
        strategy = fields["collision_strategy"]
        update["concurrency_options"] = _concurrency(strategy) if strategy else None
    update["parameter_openapi_schema"] = parameter_schema(_flow(fields["entrypoint"])).model_dump()
    client.update_deployment(found.id, DeploymentUpdate(**update))
    if {"cron", "timezone"} & change.fields.keys():
        _update_schedule(client, item, found)


def _update_schedule(client: SyncPrefectClient, item: Item, response: DeploymentResponse) -> None:
    ours = next((schedule for schedule in response.schedules if isinstance(schedule.schedule, CronSchedule)), None)
    if item.fields["cron"] is None:
        if ours is not None and ours.id is not None:
            client.delete_deployment_schedule(response.id, ours.id)
    elif ours is not None and ours.id is not None:
        client.update_deployment_schedule(response.id, ours.id, schedule=_cron(item))
    else:
        client.create_deployment_schedules(response.id, [DeploymentScheduleCreate(schedule=_cron(item), active=True)])


def _cron(item: Item) -> CronSchedule:
    return CronSchedule(cron=item.fields["cron"], timezone=item.fields["timezone"])


def _concurrency(strategy: str) -> ConcurrencyOptions:
    return ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy(strategy))


def _flow(entrypoint: str) -> Flow[..., Any]:
    module, _, name = entrypoint.rpartition(".")
    flow: Flow[..., Any] = getattr(import_module(module), name)
    return flow


def observe(client: SyncPrefectClient, suite: str, pools: list[str], blocks: list[str]) -> tuple[Item, ...]:
    """Read the named pools and blocks, and the suite's deployments and automations."""
    wanted = WorkPoolFilter(name=WorkPoolFilterName(any_=pools))
    found = paged(partial(client.read_work_pools, work_pool_filter=wanted))
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=["plumbline", suite_tag(suite)]))
    deployments = paged(partial(client.read_deployments, deployment_filter=tagged))
    flows = {flow_id: client.read_flow(flow_id).name for flow_id in {deployment.flow_id for deployment in deployments}}
    names = {str(deployment.id): f"{flows[deployment.flow_id]}/{deployment.name}" for deployment in deployments}
    return (
        *(Item("work-pool", pool.name, initial={"concurrency_limit": pool.concurrency_limit}) for pool in found),
        *(Item("block", name, {"address": kept}) for name in blocks if (kept := stored_fingerprint(client, name))),
        *(
            Item("deployment", names[str(deployment.id)], _fields(deployment), _initial(deployment))
            for deployment in deployments
        ),
        *(
            Item("automation", automation.name, _automation_fields(client, automation, names))
            for automation in _read_automations(client)
            if automation.name.startswith(f"plumbline {suite}: ")
        ),
    )


def _fields(response: DeploymentResponse) -> dict[str, Any]:
    crons = [each.schedule for each in response.schedules if isinstance(each.schedule, CronSchedule)]
    options = response.concurrency_options
    return {
        "entrypoint": response.entrypoint,
        "work_pool": response.work_pool_name,
        "work_queue": response.work_queue_name,
        "tags": response.tags,
        "description": response.description,
        "parameters": response.parameters,
        "cron": crons[0].cron if crons else None,
        "timezone": crons[0].timezone if crons else None,
        "collision_strategy": options.collision_strategy.value if options else None,
    }


def _initial(response: DeploymentResponse) -> dict[str, Any]:
    limit = response.global_concurrency_limit
    return {"job_variables": response.job_variables or {}, "concurrency_limit": limit.limit if limit else None}


def _automation_fields(client: SyncPrefectClient, automation: Automation, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(automation.trigger, EventTrigger) or not automation.actions:
        return {}
    related = automation.trigger.match_related
    specifications = related if isinstance(related, list) else [related]
    trigger = {
        "expect": sorted(automation.trigger.expect),
        "after": sorted(automation.trigger.after),
        "for_each": sorted(automation.trigger.for_each),
        "posture": automation.trigger.posture.value,
        "within": int(automation.trigger.within.total_seconds()),
        "related": [
            value for specification in specifications for value in specification.get("prefect.resource.id") or []
        ],
    }
    action = automation.actions[0].model_dump(mode="json")
    fields: dict[str, Any] = {"type": action["type"]}
    if action.get("deployment_id"):
        fields["deployment"] = names.get(action["deployment_id"], action["deployment_id"])
        fields["parameters"] = action.get("parameters") or {}
    elif action.get("block_document_id"):
        block = client.read_block_document(UUID(action["block_document_id"]))
        kind = block.block_type.slug if block.block_type else ""
        fields |= {"block": f"{kind}/{block.name}", "subject": action["subject"], "body": action["body"]}
    else:
        fields |= {key: action.get(key) for key in ("state", "name", "message")}
    return {"trigger": trigger, "action": fields, "enabled": automation.enabled}


def _replace_automation(client: SyncPrefectClient, item: Item) -> None:
    _delete_automation(client, item)
    client.create_automation(_automation(client, item))


def _delete_automation(client: SyncPrefectClient, item: Item) -> None:
    # All are read: a server of Prefect 3.6 refuses the newer client's question for a name.
    for found in _read_automations(client):
        if found.name == item.name:
            client.delete_automation(found.id)


def _read_automations(client: SyncPrefectClient) -> list[Automation]:
    """Return all automations, paginated, which Prefect 3.6's client does not support."""

    def read(limit: int, offset: int) -> list[Automation]:
        page = client.request("POST", "/automations/filter", json={"limit": limit, "offset": offset}).json()
        return [Automation.model_validate(item) for item in page]

    return paged(read)


def _automation(client: SyncPrefectClient, item: Item) -> AutomationCore:
    trigger, action = item.fields["trigger"], item.fields["action"]
    if action["type"] == "run-deployment":
        # Owned by the deployment: the server deletes it with the deployment.
        expect, parameters = set(trigger["expect"]), dict(action["parameters"])
        owned = DeploymentEventTrigger(name=item.name, expect=expect, parameters=parameters)
        owned.set_deployment_id(client.read_deployment_by_name(action["deployment"]).id)
        return owned.as_automation()
    effect: SendNotification | ChangeFlowRunState
    if action["type"] == "send-notification":
        block = block_id(client, action["block"])
        effect = SendNotification(block_document_id=block, subject=action["subject"], body=action["body"])
    else:
        effect = ChangeFlowRunState(state=action["state"], name=action["name"], message=action["message"])
    return AutomationCore(
        name=item.name,
        trigger=EventTrigger(
            expect=set(trigger["expect"]),
            after=set(trigger["after"]),
            for_each=set(trigger["for_each"]),
            match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
            match_related=[
                ResourceSpecification({"prefect.resource.id": [resource]}) for resource in trigger["related"]
            ],
            posture=Posture(trigger["posture"]),
            threshold=1,
            within=timedelta(seconds=trigger["within"]),
        ),
        actions=[effect],
    )
