"""The doctor's look at a platform's work pool: is it there, can it start a training, and is a worker online."""

from __future__ import annotations

from contextlib import suppress

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from plumbline.doctor import Ailment
from plumbline.errors import ExitCode
from plumbline.schema.suite import Suite
from tasks.observing import worker_states

__all__ = ["examine_pool"]


def examine_pool(client: SyncPrefectClient, suite: Suite, platform: str) -> Ailment:
    """What is wrong with the pool of a platform."""
    where, pool = f"{platform}: worker", suite.platforms[platform].work_pool
    workers = worker_states(client, pool)
    if workers is None:
        mend = "`plumbline deploy SUITE` makes it"
        return Ailment(where=where, what=f"there is no work pool {pool}", mend=mend, code=int(ExitCode.USAGE))
    if missing := _not_given(client, f"training/{suite.name}-{platform}", pool):
        what = f"{pool} asks for job variables that nobody gives: {', '.join(missing)}"
        mend = "give them a default: `prefect work-pool update --base-job-template`, see infra/kubernetes"
        return Ailment(where=where, what=what, mend=mend, code=int(ExitCode.USAGE))
    online = sorted(name for name, online in workers.items() if online)
    if online:
        return Ailment(where=where, what=f"{', '.join(online)} in {pool}", well=True)
    mend = f"start one there: `prefect worker start --pool {pool}`"
    return Ailment(where=where, what=f"no worker online in {pool}", mend=mend, code=int(ExitCode.INCONCLUSIVE))


def _not_given(client: SyncPrefectClient, deployment: str, pool: str) -> list[str]:
    """The variables without which the server refuses to start a training."""
    variables = client.read_work_pool(pool).base_job_template.get("variables", {})
    known = {name for name, one in variables.get("properties", {}).items() if "default" in one}
    with suppress(ObjectNotFound):
        known |= (client.read_deployment_by_name(deployment).job_variables or {}).keys()
    return [name for name in variables.get("required", []) if name not in known]
