"""Checks on a Prefect server: API, events, database, deployments, pools, schedule, alert blocks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from prefect.client.orchestration import SyncPrefectClient
from prefect.events import get_events_client

from plumbline.deployment import CONTROLLERS_POOL, REGRESSION, Item, desired, desired_at
from plumbline.doctor import CheckResult, examine_clock
from plumbline.doctor.checks import failed, from_error
from plumbline.errors import ExitCode, PlumblineError
from plumbline.schema.suite import Schedule, Suite
from plumbline.schema.suite_values import api_key_variable
from plumbline.tasks.doctor_pools import CONTROLLERS, check_pool, read_deployment
from plumbline.tasks.prefect_client.api import (
    PREFECT_ERRORS,
    check_api,
    check_schedule,
    database_remark,
    first_line,
    read_clock,
    read_planned,
    wait_for_api,
)
from plumbline.tasks.prefect_client.deployments import plan
from plumbline.tasks.prefect_client.platform_apis import open_apis

_API = "Prefect API"
_DEPLOY = "run `plumbline deploy SUITE`"
_POLL_SECONDS = 0.5
_PLAN_SECONDS = 15.0
"""Prefect's scheduler plans the runs of a new or resumed schedule within a few seconds."""
_EVENTS_SECONDS = 20.0
_NEXT_ROUNDS = 3


def check_server(suite: Suite) -> tuple[list[CheckResult], dict[str, str]]:
    """Check the suite's objects on the server; return results and reachable pools."""
    try:
        wait_for_api(0.0)
        with open_apis(suite) as apis:
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
                    check_api(other, f"set {api_key_variable(name)}")
                    results += [*_check_api(other, f"{_API} of {name}")]
                    results += [*_check_deployed(other, f"{suite.name} at {name}", desired_at(suite, api), suite.name)]
                except PlumblineError as error:
                    results.append(from_error(f"{_API} of {name}", error))
                    away |= {key for key, platform in suite.platforms.items() if platform.api == api}
            checked = {name: check_pool(apis.of(name), suite, name, pools[name]) for name in pools if name not in away}
    except PlumblineError as error:
        return [from_error(_API, error)], {}
    except PREFECT_ERRORS as error:
        return [CheckResult(where=_API, what=str(error), hint="see its log", code=int(ExitCode.INCONCLUSIVE))], {}
    results += checked.values()
    return results, {name: pools[name] for name, result in checked.items() if result.well}


def _check_api(client: SyncPrefectClient, place: str = _API) -> Iterator[CheckResult]:
    yield CheckResult(where=place, what=f"{str(client.api_url).rstrip('/')} answers", well=True)
    where, reading = f"{place}'s clock", read_clock(client)
    if reading is None:
        yield CheckResult(where=where, what="not compared: the server's responses contain no date", well=True)
        return
    hint = "start a time service here, or on the server (chrony, systemd-timesyncd)"
    yield examine_clock(where, reading.server, reading.asked, reading.answered, hint)


def _check_events(client: SyncPrefectClient) -> CheckResult:
    """Check the websocket of events, which a proxy may refuse though it passes the rest of the API."""

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
    """Compare the suite's objects on the server with those of the file, as `plumbline deploy` does."""
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
        yield failed(change.item.name, f"differs from the file: {', '.join(change.fields)}", _DEPLOY)
    if not missing and not different:
        kinds = Counter(change.item.kind for change in changes if change.verb == "keep")
        parts = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in kinds.items()]
        yield CheckResult(where=place, what=f"deployed as in the file: {', '.join(parts)}", well=True)


def _check_schedule(client: SyncPrefectClient, suite: str, schedule: Schedule) -> Iterator[CheckResult]:
    """Report the start times that Prefect has planned, which is what will happen."""
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
