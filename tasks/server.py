"""What stands on a Prefect server, in the words of `plumbline.deploying`."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags, WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.events.schemas.automations import Automation, EventTrigger

from plumbline.deploying import Item
from tasks.addresses import kept_fingerprint

__all__ = ["observed"]

_PAGE = 200


def observed(client: SyncPrefectClient, suite: str, pools: list[str], blocks: list[str]) -> tuple[Item, ...]:
    """The pools and blocks of these names, and everything that carries the suite's mark."""
    wanted = WorkPoolFilter(name=WorkPoolFilterName(any_=pools))
    found = client.read_work_pools(limit=_PAGE, work_pool_filter=wanted)
    marked = DeploymentFilter(tags=DeploymentFilterTags(all_=["plumbline", f"suite:{suite}"]))
    deployments = client.read_deployments(deployment_filter=marked, limit=_PAGE)
    names = {str(one.id): f"{_flow(client, one)}/{one.name}" for one in deployments}
    return (
        *(Item("work-pool", one.name, {"concurrency_limit": one.concurrency_limit}) for one in found),
        *(Item("block", name, {"address": kept}) for name in blocks if (kept := kept_fingerprint(client, name))),
        *(Item("deployment", names[str(one.id)], _fields(one)) for one in deployments),
        *(
            Item("automation", one.name, _automation(one, names))
            for one in client.read_automations()
            if one.name.startswith(f"plumbline {suite}: ")
        ),
    )


def _flow(client: SyncPrefectClient, deployment: DeploymentResponse) -> str:
    return client.read_flow(deployment.flow_id).name


def _fields(one: DeploymentResponse) -> dict[str, Any]:
    crons = [each.schedule for each in one.schedules or [] if isinstance(each.schedule, CronSchedule)]
    return {
        "entrypoint": one.entrypoint,
        "work_pool": one.work_pool_name,
        "tags": one.tags,
        "parameters": one.parameters,
        "job_variables": one.job_variables or {},
        "cron": crons[0].cron if crons else None,
        "timezone": crons[0].timezone if crons else None,
    }


def _automation(one: Automation, names: dict[str, str]) -> dict[str, Any]:
    if not isinstance(one.trigger, EventTrigger) or not one.actions:
        return {}
    action = one.actions[0].model_dump(mode="json")
    told = {"type": action["type"]}
    if action.get("deployment_id"):
        told["deployment"] = names.get(action["deployment_id"], action["deployment_id"])
    if action.get("block_document_id"):
        # Which block it is, its description says; the server knows only the id.
        told |= {"block": one.description, "subject": action.get("subject"), "body": action.get("body")}
    resource = _related(one.trigger)
    match = {"deployment": names.get(resource, resource)} if resource else {}
    return {"expect": sorted(one.trigger.expect), "match": match, "action": told}


def _related(trigger: EventTrigger) -> str:
    """The id of the deployment whose runs the trigger is about; the server gives one value as a list of one."""
    related = trigger.match_related
    for specification in related if isinstance(related, list) else [related]:
        for value in specification.get("prefect.resource.id") or []:
            return value.removeprefix("prefect.deployment.")
    return ""
