"""Checks of a Prefect server and the suite's objects there."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from zoneinfo import ZoneInfo

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import WorkPool, WorkQueueStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events import get_events_client
from prefect.exceptions import ObjectNotFound

from plumbline.night.deployment import (
    CONTROLLERS_POOL,
    REGRESSION,
    Item,
    desired,
    desired_at,
    pool_limit,
    training_deployment,
)
from plumbline.night.doctor import CheckResult, examine_clock
from plumbline.night.doctor.checks import WorkPoolView, failed, from_error, pool_misfits
from plumbline.night.machines import open_group, wanted_sizes
from plumbline.schema.errors import ExitCode, PlumblineError
from plumbline.schema.suite import Platform, Schedule, Suite
from plumbline.tasks.prefect_client.api import (
    check_api,
    check_schedule,
    database_remark,
    first_line,
    read_clock,
    read_planned,
    server_errors,
    wait_for_api,
)
from plumbline.tasks.prefect_client.deployments import plan
from plumbline.tasks.prefect_client.flow_runs import PoolHealth, closed_reason, read_pool
from plumbline.tasks.prefect_client.platform_apis import PlatformApis, open_apis, platform_errors

_API = "Prefect API"
_DEPLOY = "run `plumbline deploy SUITE`"
_POLL_SECONDS = 0.5
_PLAN_SECONDS = 15.0
"""Prefect's scheduler plans the runs of a new or resumed schedule within a few seconds."""
_EVENTS_SECONDS = 20.0
_NEXT_ROUNDS = 3
_CHECK_SECONDS = 120.0
"""Time for all checks on a platform's API: dispatch allows each of its requests 15 s."""

CONTROLLERS = "controllers"
"""Name of the controllers' pool among the platforms' in the doctor's report."""
_POLLED_SECONDS = 20.0
"""A worker asks every ten seconds by default, and finds a new queue at its next request."""


def read_deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    """Return a deployment, or `None` if it does not exist."""
    with suppress(ObjectNotFound):
        return client.read_deployment_by_name(name)
    return None


def check_pool(client: SyncPrefectClient, suite: Suite, place: str, pool: str) -> CheckResult:
    """Check that a work pool exists, fits, and has workers."""
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
    if (closed := closed_reason(client, found, queue)) is not None:
        return failed(where, *closed, ExitCode.INCONCLUSIVE)
    return _check_workers(client, health, found, queue, suite, place)


def _misfits(
    found: WorkPool, deployed: DeploymentResponse | None, suite: Suite, place: str
) -> Iterator[tuple[str, str]]:
    """Yield (text, hint) for settings that the work pool's template ignores."""
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
    """Check that a worker polls the queue, or machines can start."""
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
    """Check that the controller can read the machine group's size."""
    try:
        size = open_group(platform.machines).size()
    except PlumblineError as error:
        return from_error(where, error)
    wanted = wanted_sizes(suite)[platform.machines]
    text = f"{platform.machines} has {size} of the {wanted} machines that a round starts"
    return CheckResult(where=where, what=text, well=True)


def _is_polled(client: SyncPrefectClient, pool: str, queue: str) -> bool:
    """Return whether any worker polls this work queue."""
    deadline = time.monotonic() + _POLLED_SECONDS
    while client.read_work_queue_by_name(queue, pool).status is WorkQueueStatus.NOT_READY:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _missing_variables(pool: WorkPool, given: set[str]) -> list[str]:
    """Return the required job variables that have no value."""
    variables = pool.base_job_template.get("variables", {})
    known = given | {name for name, one in variables.get("properties", {}).items() if "default" in one}
    return [name for name in variables.get("required", []) if name not in known]


def check_server(suite: Suite) -> tuple[list[CheckResult], dict[str, str]]:
    """Check the suite's objects on the server; return results and reachable pools."""
    try:
        wait_for_api(0.0)
        with server_errors(), open_apis(suite) as apis:
            client = apis.own
            results = [*_check_api(client), _check_events(client), *_check_database(client)]
            controllers = read_deployment(client, f"{REGRESSION}/{suite.name}")
            pool = controllers.work_pool_name if controllers is not None else None
            results += [*_check_deployed(client, suite.name, desired(suite, controllers=pool or CONTROLLERS_POOL))]
            if suite.schedule is not None:
                results += [*_check_schedule(client, suite.name, suite.schedule)]
            pools = {name: platform.work_pool for name, platform in suite.platforms.items()}
            if pool:
                pools[CONTROLLERS] = pool
            away = set[str]()
            for api, name, other in apis.foreign(suite):
                try:
                    with platform_errors(suite, name):
                        results += apis.ask(other, partial(_check_foreign, suite=suite, name=name), _CHECK_SECONDS)
                except PlumblineError as error:
                    results.append(from_error(f"{_API} of {name}", error))
                    away |= {key for key, platform in suite.platforms.items() if platform.api == api}
            checked = {name: _check_pool(apis, suite, name, pools[name]) for name in pools if name not in away}
    except PlumblineError as error:
        return [from_error(_API, error)], {}
    results += checked.values()
    return results, {name: pools[name] for name, result in checked.items() if result.well}


def _check_foreign(client: SyncPrefectClient, suite: Suite, name: str) -> list[CheckResult]:
    """Check a platform's separate Prefect API, and the suite's objects there."""
    check_api(client)
    wanted = desired_at(suite, suite.platforms[name].api)
    results = [*_check_api(client, f"{_API} of {name}")]
    return [*results, *_check_deployed(client, f"{suite.name} at {name}", wanted, suite.name)]


def _check_pool(apis: PlatformApis, suite: Suite, name: str, pool: str) -> CheckResult:
    """Check a platform's work pool; an API error fails only this check."""
    check = partial(check_pool, suite=suite, place=name, pool=pool)
    if apis.is_own(name):
        return check(apis.own)
    try:
        with platform_errors(suite, name):
            return apis.ask(apis.of(name), check, _CHECK_SECONDS)
    except PlumblineError as error:
        return from_error(f"{name}: worker", error)


def _check_api(client: SyncPrefectClient, place: str = _API) -> Iterator[CheckResult]:
    yield CheckResult(where=place, what=f"{str(client.api_url).rstrip('/')} answers", well=True)
    where, reading = f"{place}'s clock", read_clock(client)
    if reading is None:
        yield CheckResult(where=where, what="not compared: the server's responses contain no date", well=True)
        return
    hint = "start a time service here, or on the server (chrony, systemd-timesyncd)"
    yield examine_clock(where, reading.server, reading.asked, reading.answered, hint)


def _check_events(client: SyncPrefectClient) -> CheckResult:
    """Check that the event websocket works, which a proxy may block."""

    async def connect() -> None:
        async with get_events_client(reconnection_attempts=0):
            pass

    where, url = f"{_API}'s events", str(client.api_url).rstrip("/")
    try:
        asyncio.run(asyncio.wait_for(connect(), _EVENTS_SECONDS))
    except Exception as error:  # noqa: BLE001 - those of sockets, of HTTP and of the websocket have no common base
        text = f"no websocket to {url}/events/in: {first_line(error)}"
        hint = "let the proxy pass websockets: automations see no heartbeat, verdict or upgrade without them"
        return failed(where, text, hint, ExitCode.INCONCLUSIVE)
    return CheckResult(where=where, what="can be sent", well=True)


def _check_database(client: SyncPrefectClient) -> Iterator[CheckResult]:
    if remark := database_remark(client):
        yield CheckResult(where=f"{_API}'s database", what=remark, well=True)


def _check_deployed(
    client: SyncPrefectClient, place: str, wanted: Sequence[Item], suite: str = ""
) -> Iterator[CheckResult]:
    """Compare the server's objects with the suite file, like `plumbline deploy`."""
    suite = suite or place
    try:
        changes = plan(client, suite, wanted)
    except PlumblineError as error:
        yield from_error(place, error)
        return
    # A missing work pool is reported with its workers.
    missing = [change.item for change in changes if change.verb == "create" and change.item.kind != "work-pool"]
    different = [change for change in changes if change.verb == "change"]
    for block in (item.name for item in missing if item.kind == "block"):
        hint = "create it in Prefect, or set its address_from and deploy: docs/how-to/alerts.md"
        yield failed(f"alerts: {block}", "the block does not exist on the server", hint)
    if absent := [item.name for item in missing if item.kind != "block"]:
        is_round_missing = f"{REGRESSION}/{suite}" in absent
        text = "is not deployed" if is_round_missing else f"not deployed: {', '.join(absent)}"
        yield failed(place, text, _DEPLOY)
    for change in different:
        is_off = change.fields.keys() == {"enabled"}
        text = "the automation is switched off" if is_off else f"differs from the file: {', '.join(change.fields)}"
        yield failed(change.item.name, text, _DEPLOY)
    if not missing and not different:
        kinds = Counter(change.item.kind for change in changes if change.verb == "keep")
        parts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds.items()]
        yield CheckResult(where=place, what=f"deployed as in the file: {', '.join(parts)}", well=True)


def _check_schedule(client: SyncPrefectClient, suite: str, schedule: Schedule) -> Iterator[CheckResult]:
    """Report the start times that Prefect has scheduled."""
    where = f"{suite}: schedule"
    try:
        check_schedule(schedule, where=suite)
    except PlumblineError as error:
        yield from_error(where, error)
        return
    deadline, now = time.monotonic() + _PLAN_SECONDS, datetime.now(UTC)
    while (planned := read_planned(client, f"{REGRESSION}/{suite}", now)) is not None:
        if not planned.active:
            yield failed(where, "is paused on the server", "resume it in Prefect's UI", ExitCode.INCONCLUSIVE)
        elif planned.times:
            zone = ZoneInfo(schedule.timezone)
            times = [f"{time.astimezone(zone):%Y-%m-%d %H:%M %Z}" for time in planned.times[:_NEXT_ROUNDS]]
            yield CheckResult(where=where, what=f"next rounds at {', '.join(times)}", well=True)
        elif time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            continue
        else:
            hint = "check that schedule.cron ever fires, and that the scheduler of Prefect's server runs"
            yield failed(where, "Prefect has planned no round", hint, ExitCode.INCONCLUSIVE)
        return
