"""Advice about the database of a Prefect server, whose address the API hides."""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

from plumbline.deployment import suite_tag

__all__ = ["database_remark"]

_PAGE = 200
_SEVERAL = 2
_MOST_NAMES = 5
_TAG = suite_tag("")


def database_remark(client: SyncPrefectClient) -> str:
    """Return advice if several suites are deployed; "" if not, or if the database is known to be PostgreSQL.

    The API shows the database's driver only if the server was given its address in parts.
    """
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=["plumbline", "plumbline-round"]))
    tags = [tag for item in client.read_deployments(deployment_filter=tagged, limit=_PAGE) for tag in item.tags]
    suites = sorted({tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG)})
    settings = client.request("GET", "/admin/settings").json()
    driver = settings.get("server", {}).get("database", {}).get("driver") or ""
    if len(suites) < _SEVERAL or driver.startswith("postgresql"):
        return ""
    names = ", ".join(suites[:_MOST_NAMES]) + ", ..." * (len(suites) > _MOST_NAMES)
    return (
        f"the server runs {len(suites)} suites ({names}): its database must be PostgreSQL;"
        " with SQLite, requests fail with 'database is locked' and live workers count as offline"
    )
