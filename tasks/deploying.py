"""Apply a suite to a Prefect server: what is missing is made, what differs is changed, nothing is deleted unasked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from plumbline.deploying import Change, Item, compare_items, desired
from plumbline.errors import ConfigurationError
from plumbline.schema.suite import Suite
from tasks.addresses import Blocks
from tasks.automating import apply_automation
from tasks.making import make_deployment, make_pool
from tasks.server import observed

__all__ = ["apply", "deploy_trainings", "plan", "prune"]


def deploy_trainings(suite: Suite) -> None:
    """Bring up to date what a round by hand needs: the platforms' pools and the deployments of their trainings."""
    wanted = desired(suite, "", controllers=next(iter(suite.platforms.values())).work_pool)
    needed = [one for one in wanted if one.kind == "work-pool" or one.name.startswith("training/")]
    with get_client(sync_client=True) as client:
        apply(client, plan(client, suite.name, needed))


def plan(client: SyncPrefectClient, suite: str, wanted: Sequence[Item]) -> tuple[Change, ...]:
    """What there is to do; `ConfigurationError` if a deployment that it takes is another suite's."""
    pools, blocks = ([item.name for item in wanted if item.kind == kind] for kind in ("work-pool", "block"))
    changes = compare_items(wanted, observed(client, suite, pools, blocks))
    for change in changes:
        # What carries our own mark was observed.
        if change.verb == "create" and change.item.kind == "deployment":
            _refuse_anothers(client, suite, change.item.name)
    return changes


def _refuse_anothers(client: SyncPrefectClient, suite: str, name: str) -> None:
    """`training/nightly-large-aws` is large-aws of the suite nightly, and aws of nightly-large."""
    with suppress(ObjectNotFound):
        for tag in client.read_deployment_by_name(name).tags:
            kind, _, other = tag.partition(":")
            if kind == "suite" and other != suite:
                mend = f"rename {suite} or its platform; if {other} is gone, `prefect deployment delete {name}`"
                raise ConfigurationError(f"belongs to the suite {other}", where=suite, key=name, mend=mend)


def apply(client: SyncPrefectClient, changes: Sequence[Change], blocks: Blocks | None = None) -> None:
    """Do it. Doing it again does nothing."""
    for change in changes:
        if change.verb not in ("create", "change"):
            continue
        if change.item.kind == "work-pool":
            make_pool(client, change)
        elif change.item.kind == "block":
            if blocks is not None:
                blocks.make(change.item.name)
        elif change.item.kind == "deployment":
            make_deployment(client, change.item)
        else:
            apply_automation(client, change)


def prune(client: SyncPrefectClient, changes: Sequence[Change]) -> None:
    """Delete the deployments and automations that carry the suite's mark and are no longer in it."""
    for change in (one for one in changes if one.verb == "extra"):
        if change.item.kind == "deployment":
            client.delete_deployment(client.read_deployment_by_name(change.item.name).id)
        elif change.item.kind == "automation":
            for found in client.read_automations_by_name(change.item.name):
                client.delete_automation(found.id)
