"""Apply a suite to a Prefect server: what is missing is made, what differs is changed, nothing is deleted unasked."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from plumbline.deploying import Change, Item, compare_items, desired
from plumbline.errors import AccessError, UnavailableError
from plumbline.schema.suite import Suite
from tasks.addresses import Blocks
from tasks.automating import apply_automation
from tasks.making import make_deployment, make_pool
from tasks.server import observed

__all__ = ["apply", "deploy_trainings", "plan", "prune", "wait_for_api"]

_POLL_SECONDS = 0.2


def wait_for_api(seconds: float) -> None:
    """Return when the Prefect API answers; `UnavailableError` if it does not in time, `AccessError` if it refuses."""
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        where = str(client.api_url).rstrip("/")
        while (error := client.api_healthcheck()) is not None:
            if time.monotonic() > deadline:
                mend = "set PREFECT_API_URL, or start the server"
                raise UnavailableError(f"no answer: {_line(error)}", where=where, mend=mend)
            time.sleep(_POLL_SECONDS)
        try:
            # Its health, a server tells to everyone; the rest only to those who may ask.
            client.hello()
        except PrefectHTTPStatusError as refusal:
            status = refusal.response.status_code
            if status not in (401, 403):
                raise UnavailableError(f"no answer: HTTP {status}", where=where) from refusal
            mend = "set PREFECT_API_KEY, or PREFECT_API_AUTH_STRING for a server of your own"
            raise AccessError(f"wrong credentials: HTTP {status}", where=where, mend=mend) from refusal


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def deploy_trainings(suite: Suite, *, python: str | None) -> None:
    """Bring up to date what a round by hand needs: the platforms' pools and the deployments of their trainings."""
    wanted = desired(suite, "", controllers=next(iter(suite.platforms.values())).work_pool, python=python)
    needed = [one for one in wanted if one.kind == "work-pool" or one.name.startswith("training/")]
    with get_client(sync_client=True) as client:
        apply(client, plan(client, suite.name, needed))


def plan(client: SyncPrefectClient, suite: str, wanted: Sequence[Item]) -> tuple[Change, ...]:
    """What there is to do."""
    pools, blocks = ([item.name for item in wanted if item.kind == kind] for kind in ("work-pool", "block"))
    return compare_items(wanted, observed(client, suite, pools, blocks))


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
