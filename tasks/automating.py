"""Automations: a round after an upgrade's event, and a word to people when a controller crashed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.actions import ActionTypes, RunDeployment, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from plumbline.deploying import Change

__all__ = ["apply_automation", "block_id"]


def apply_automation(client: SyncPrefectClient, change: Change) -> None:
    """Create or replace the automation."""
    for found in client.read_automations_by_name(change.item.name):
        client.delete_automation(found.id)
    client.create_automation(_automation(client, change.item.name, dict(change.item.fields)))


def _automation(client: SyncPrefectClient, name: str, fields: dict[str, Any]) -> AutomationCore:
    deployment = fields["match"].get("deployment")
    related = {"prefect.resource.id": f"prefect.deployment.{_deployment(client, deployment)}"} if deployment else {}
    action: ActionTypes
    told = fields["action"]
    if told["type"] == "run-deployment":
        action = RunDeployment(deployment_id=_deployment(client, told["deployment"]))
    else:
        block = block_id(client, told["block"])
        action = SendNotification(block_document_id=block, subject=told["subject"], body=told["body"])
    return AutomationCore(
        name=name,
        description=fields["action"].get("block", ""),
        trigger=EventTrigger(
            expect=set(fields["expect"]),
            match_related=ResourceSpecification(related),
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[action],
    )


def _deployment(client: SyncPrefectClient, name: str) -> UUID:
    return client.read_deployment_by_name(name).id


def block_id(client: SyncPrefectClient, block: str) -> UUID:
    """The id of `TYPE/NAME`; `ObjectNotFound` if there is none."""
    kind, _, name = block.partition("/")
    return client.read_block_document_by_name(name, kind).id
