"""Checks on the work pools of a suite, and on their queues and workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import WorkPool, WorkQueueStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from plumbline.deployment import REGRESSION, pool_limit, training_deployment
from plumbline.doctor import CheckResult
from plumbline.doctor.checks import WorkPoolView, failed, from_error, pool_misfits
from plumbline.errors import ExitCode, PlumblineError
from plumbline.machines import open_group, wanted_sizes
from plumbline.schema.suite import Platform, Suite
from plumbline.tasks.prefect_client.flow_runs import PoolHealth, read_pool

CONTROLLERS = "controllers"
"""Name of the controllers' pool among the platforms' in the doctor's report."""
_POLL_SECONDS = 0.5
_POLLED_SECONDS = 20.0
"""A worker asks every ten seconds by default, and finds a new queue at its next request."""
_DEPLOY = "run `plumbline deploy SUITE`"


def read_deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    """Return a deployment; `None` if it does not exist."""
    with suppress(ObjectNotFound):
        return client.read_deployment_by_name(name)
    return None


def check_pool(client: SyncPrefectClient, suite: Suite, place: str, pool: str) -> CheckResult:
    """Check that the pool exists, fits the deployment and the platform, has a worker online, and starts runs."""
    where = f"{place}: worker"
    health = read_pool(client, pool)
    if health is None:
        return failed(where, f"work pool {pool} does not exist", f"{_DEPLOY} to create it")
    found, platform = client.read_work_pool(pool), suite.platforms.get(place)
    of_round = f"{REGRESSION}/{suite.name}"
    deployed = read_deployment(client, of_round if platform is None else training_deployment(suite.name, place))
    for misfit in _misfits(found, deployed, suite, place):
        return failed(where, *misfit)
    queue = (deployed.work_queue_name if deployed is not None else None) or "default"
    if (closed := _closed(client, found, queue)) is not None:
        return failed(where, *closed, ExitCode.INCONCLUSIVE)
    return _check_workers(client, health, found, queue, suite, place)


def _misfits(
    found: WorkPool, deployed: DeploymentResponse | None, suite: Suite, place: str
) -> Iterator[tuple[str, str]]:
    """Yield (text, hint) for what the pool's template does not carry out."""
    platform = suite.platforms.get(place)
    given = {*((deployed.job_variables or {}) if deployed else {}), *(platform.job_variables if platform else {})}
    if missing := _missing_variables(found, given):
        text = f"{found.name} requires job variables without a value: {', '.join(missing)}"
        yield text, "give them a default: `prefect work-pool update --base-job-template`"
    if platform is not None:
        needed = pool_limit(each for each in suite.platforms.values() if each.work_pool == found.name)
        variables = found.base_job_template.get("variables", {}).get("properties", {})
        view = WorkPoolView(found.name, found.type, found.concurrency_limit, variables)
        yield from pool_misfits(view, platform, needed)


def _check_workers(  # noqa: PLR0917 - all that is known of the pool
    client: SyncPrefectClient, health: PoolHealth, found: WorkPool, queue: str, suite: Suite, place: str
) -> CheckResult:
    """Check that a worker asks for the queue's runs, or that a round can start machines."""
    pool, platform, where = found.name, suite.platforms.get(place), f"{place}: worker"
    if not health.has_workers:
        text = f"{pool} is a {health.kind} pool: Prefect starts its runs, so no worker can be seen; --workers runs one"
        return CheckResult(where=where, what=text, well=True)
    online = sorted(name for name, is_online in health.workers.items() if is_online)
    if online and platform is not None and platform.queue and not _is_polled(client, pool, queue):
        hint = f"start one there: `prefect worker start --pool {pool} --work-queue {queue}`"
        return failed(where, f"no worker asks for the runs of {pool}'s queue {queue}", hint, ExitCode.INCONCLUSIVE)
    if online:
        return CheckResult(where=where, what=f"{', '.join(online)} in {pool}", well=True)
    if platform is not None and platform.machines:
        return _check_machines(suite, platform, where)
    hint = f"start one there: `prefect worker start --pool {pool}`"
    return failed(where, f"no worker online in {pool}", hint, ExitCode.INCONCLUSIVE)


def _check_machines(suite: Suite, platform: Platform, where: str) -> CheckResult:
    """Check that the group of machines can be read, with the controller's identity."""
    try:
        size = open_group(platform.machines).size()
    except PlumblineError as error:
        return from_error(where, error)
    wanted = wanted_sizes(suite)[platform.machines]
    text = f"{platform.machines} has {size} of the {wanted} machines that a round starts"
    return CheckResult(where=where, what=text, well=True)


def _closed(client: SyncPrefectClient, found: WorkPool, name: str) -> tuple[str, str] | None:
    """Return why no worker gets a run of the queue, and a hint; `None` if the way is open."""
    pool = found.name
    if found.is_paused:
        return f"work pool {pool} is paused", f"`prefect work-pool resume {pool}`"
    if found.concurrency_limit == 0:
        return f"work pool {pool} has the concurrency limit 0", f"`prefect work-pool set-concurrency-limit {pool} 1`"
    try:
        queue = client.read_work_queue_by_name(name, pool)
    except ObjectNotFound:
        return f"work queue {name} of {pool} does not exist", _DEPLOY
    if queue.is_paused:
        return f"work queue {name} of {pool} is paused", f"`prefect work-queue resume {name} --pool {pool}`"
    if queue.concurrency_limit == 0:
        hint = f"`prefect work-queue clear-concurrency-limit {name} --pool {pool}`"
        return f"work queue {name} of {pool} has the concurrency limit 0", hint
    return None


def _is_polled(client: SyncPrefectClient, pool: str, queue: str) -> bool:
    """Return whether a worker asks for the queue's runs: a worker may serve some queues of its pool alone."""
    deadline = time.monotonic() + _POLLED_SECONDS
    while client.read_work_queue_by_name(queue, pool).status is WorkQueueStatus.NOT_READY:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _missing_variables(pool: WorkPool, given: set[str]) -> list[str]:
    """Return the required job variables without a value."""
    variables = pool.base_job_template.get("variables", {})
    known = given | {name for name, one in variables.get("properties", {}).items() if "default" in one}
    return [name for name in variables.get("required", []) if name not in known]
