"""Checks on a Prefect server: API, deployments, pools, workers, schedule, alert blocks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from plumbline.deployment import REGRESSION, WATCH, Item, suite_parameters, training_deployment
from plumbline.doctor import CheckResult, Expected, Report, examine_clock, examine_report
from plumbline.doctor.checks import from_error
from plumbline.doctor.stores import Visit
from plumbline.errors import ExitCode, InvalidInputError, PlumblineError
from plumbline.schema.base import read_model
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS, read_clock, server_errors, wait_for_api
from plumbline.tasks.prefect_client.deployments import create_deployment
from plumbline.tasks.prefect_client.flow_runs import read_pool
from plumbline.tasks.prefect_client.notifications import stored_fingerprint
from plumbline.tasks.watch import due_times

__all__ = ["CONTROLLERS", "check_server", "check_workers"]

CONTROLLERS = "controllers"
_API = "Prefect API"
_DEPLOY = "run `plumbline deploy SUITE`"
_POLL_SECONDS = 0.5
_CHECK_SECONDS = 120.0


def check_server(suite: Suite) -> tuple[list[CheckResult], dict[str, str]]:
    """Check the suite's objects on the server; return results and reachable pools."""
    try:
        wait_for_api(0.0)
        with get_client(sync_client=True) as client:
            results = [*_check_api(client)]
            trainings = {name: training_deployment(suite.name, name) for name in suite.platforms}
            pools = {name: suite.platforms[name].work_pool for name in trainings}
            checked = {name: _check_pool(client, name, pools[name], trainings[name]) for name in pools}
            results += [*_check_regression(client, suite), *_check_watch(client, suite), *_check_blocks(client, suite)]
            controllers = _read_deployment(client, f"{REGRESSION}/{suite.name}")
            if controllers is not None and controllers.work_pool_name:
                pools[CONTROLLERS] = controllers.work_pool_name
                deployed = f"{REGRESSION}/{suite.name}"
                checked[CONTROLLERS] = _check_pool(client, CONTROLLERS, pools[CONTROLLERS], deployed)
    except PlumblineError as error:
        return [from_error(_API, error)], {}
    except PREFECT_ERRORS as error:
        return [CheckResult(where=_API, what=str(error), hint="see its log", code=int(ExitCode.INCONCLUSIVE))], {}
    results += checked.values()
    return results, {name: pools[name] for name, result in checked.items() if result.well}


def _check_api(client: SyncPrefectClient) -> Iterator[CheckResult]:
    yield CheckResult(where=_API, what=f"{str(client.api_url).rstrip('/')} answers", well=True)
    where, reading = f"{_API}'s clock", read_clock(client)
    if reading is None:
        yield CheckResult(where=where, what="not compared: the server's responses contain no date", well=True)
        return
    hint = "start a time service here, or on the server (chrony, systemd-timesyncd)"
    yield examine_clock(where, reading.server, reading.asked, reading.answered, hint)


def _read_deployment(client: SyncPrefectClient, name: str) -> DeploymentResponse | None:
    with suppress(ObjectNotFound):
        return client.read_deployment_by_name(name)
    return None


def _wrong(where: str, what: str, hint: str, code: ExitCode = ExitCode.USAGE) -> CheckResult:
    return CheckResult(where=where, what=what, hint=hint, code=int(code))


def _check_pool(client: SyncPrefectClient, place: str, pool: str, deployment: str) -> CheckResult:
    """Check that the pool exists, fits the deployment, and has a worker online."""
    where = f"{place}: worker"
    health = read_pool(client, pool)
    if health is None:
        return _wrong(where, f"work pool {pool} does not exist", f"{_DEPLOY} to create it")
    if missing := _missing_variables(client, deployment, pool):
        text = f"{pool} requires job variables without a value: {', '.join(missing)}"
        return _wrong(where, text, "give them a default: `prefect work-pool update --base-job-template`")
    if not health.has_workers:
        text = f"{pool} is a {health.kind} pool: Prefect starts its runs, so no worker can be seen; --workers runs one"
        return CheckResult(where=where, what=text, well=True)
    online = sorted(name for name, is_online in health.workers.items() if is_online)
    if online:
        return CheckResult(where=where, what=f"{', '.join(online)} in {pool}", well=True)
    hint = f"start one there: `prefect worker start --pool {pool}`"
    return _wrong(where, f"no worker online in {pool}", hint, ExitCode.INCONCLUSIVE)


def _missing_variables(client: SyncPrefectClient, deployment: str, pool: str) -> list[str]:
    """Return the required job variables without a value."""
    variables = client.read_work_pool(pool).base_job_template.get("variables", {})
    known = {name for name, one in variables.get("properties", {}).items() if "default" in one}
    if (found := _read_deployment(client, deployment)) is not None:
        known |= (found.job_variables or {}).keys()
    return [name for name in variables.get("required", []) if name not in known]


def _check_regression(client: SyncPrefectClient, suite: Suite) -> Iterator[CheckResult]:
    """Check the deployed round against the file: suite, trainings, schedule."""
    where = f"{REGRESSION}/{suite.name}"
    found = _read_deployment(client, where)
    missing = [
        name for name in suite.platforms if _read_deployment(client, training_deployment(suite.name, name)) is None
    ]
    if found is None:
        yield _wrong(where, "is not deployed", _DEPLOY)
    elif missing:
        yield _wrong(where, f"no training is deployed for {', '.join(missing)}", _DEPLOY)
    elif found.parameters != suite_parameters(suite):
        yield _wrong(where, "the deployed suite differs from the file", _DEPLOY)
    else:
        yield CheckResult(where=where, what="deployed, with the suite of the file", well=True)
    if suite.schedule is not None:
        yield _check_schedule(suite, found)


def _check_schedule(suite: Suite, response: DeploymentResponse | None) -> CheckResult:
    where = f"{suite.name}: schedule"
    schedule = suite.schedule
    assert schedule is not None  # noqa: S101 - the caller's condition
    try:
        due = next(iter(due_times(schedule, datetime.now(UTC), 1, where=suite.name)), None)
    except PlumblineError as error:
        return from_error(where, error)
    if due is None:
        return _wrong(where, f"{schedule.cron!r} never fires", "correct schedule.cron")
    active = (
        [schedule for schedule in response.schedules if schedule.active]
        if response is not None and not response.paused
        else []
    )
    if response is not None and not active:
        return _wrong(where, "is paused on the server", "resume it in Prefect's UI", ExitCode.INCONCLUSIVE)
    return CheckResult(where=where, what=f"next round at {due:%Y-%m-%d %H:%M %Z}", well=True)


def _check_watch(client: SyncPrefectClient, suite: Suite) -> Iterator[CheckResult]:
    where = f"{WATCH}/{suite.name}"
    if suite.schedule is None or not any("missed" in alert.on for alert in suite.alerts):
        return
    found = _read_deployment(client, where)
    if found is None:
        yield _wrong(where, "is not deployed: missed rounds would not be alerted", _DEPLOY)
    elif found.parameters != suite_parameters(suite):
        yield _wrong(where, "the deployed suite differs from the file", _DEPLOY)
    else:
        yield CheckResult(where=where, what="deployed, with the suite of the file", well=True)


def _check_blocks(client: SyncPrefectClient, suite: Suite) -> Iterator[CheckResult]:
    for block in dict.fromkeys(alert.block for alert in suite.alerts):
        if stored_fingerprint(client, block) is None:
            hint = "create it in Prefect, or set its address_from and deploy: docs/OPERATIONS.md"
            yield _wrong(f"alerts: {block}", "the block does not exist on the server", hint)
        else:
            yield CheckResult(
                where=f"alerts: {block}", what="the block exists; `plumbline alert --test` sends", well=True
            )


@dataclass(frozen=True, slots=True)
class _Answer:
    """A worker's report, or the reason without, with local times around it."""

    report: str
    why: str
    hint: str
    asked: datetime
    answered: datetime


def check_workers(suite: Suite, pools: Mapping[str, str]) -> list[CheckResult]:
    """Run the doctor's flow through each pool, and compare with the reference's torch."""
    results: list[CheckResult] = []
    reports: dict[str, tuple[Report, _Answer]] = {}
    try:
        with server_errors():
            answers = _ask(suite, pools)
    except PlumblineError as error:
        return [from_error(_API, error)]
    for name, answer in answers.items():
        where = f"{name}'s worker"
        if answer.why:
            results.append(_wrong(where, answer.why, answer.hint, ExitCode.INCONCLUSIVE))
            continue
        try:
            reports[name] = read_model(Report, answer.report.encode(), where="its report"), answer
        except InvalidInputError as error:
            results.append(_wrong(where, str(error), "install the same version of plumbline on every worker"))
    torch = reports[suite.reference][0].torch if suite.reference in reports else ""
    for name, (report, answer) in reports.items():
        platform = suite.platforms.get(name)
        # Controllers run without torch and without a GPU.
        expected = Expected(torch=torch, accelerator=platform.accelerator) if platform else Expected(torch=report.torch)
        results += examine_report(name, report, expected, answer.asked, answer.answered)
    return results


def _ask(suite: Suite, pools: Mapping[str, str]) -> dict[str, _Answer]:
    """Start one run per pool, and collect the reports; cancel unclaimed runs."""
    answers: dict[str, _Answer] = {}
    runs: dict[str, UUID] = {}
    with get_client(sync_client=True) as client:
        for name, pool in pools.items():
            try:
                runs[name] = _start(client, suite, name, pool)
            except ObjectNotFound:
                answers[name] = _no_answer(f"{training_deployment(suite.name, name)} is not deployed", _DEPLOY)
        began, asked = time.monotonic(), dict.fromkeys(runs, datetime.now(UTC))
        while left := runs.keys() - answers.keys():
            for name in left:
                run = client.read_flow_run(runs[name])
                seconds = _start_seconds(suite, name) + _CHECK_SECONDS
                if run.state and run.state.is_final():
                    answers[name] = _answer(run.state, asked[name])
                elif time.monotonic() - began > seconds:
                    client.set_flow_run_state(run.id, Cancelled(), force=True)
                    hint = f"check for a different run in {pools[name]}, and its worker's log"
                    answers[name] = _no_answer(f"did not answer within {seconds:g} s", hint)
                elif not (run.state and run.state.is_running()):
                    asked[name] = datetime.now(UTC)
            time.sleep(_POLL_SECONDS)
    return answers


def _start_seconds(suite: Suite, place: str) -> float:
    platforms = suite.platforms.values() if place == CONTROLLERS else [suite.platforms[place]]
    return max(platform.start_seconds for platform in platforms)


def _start(client: SyncPrefectClient, suite: Suite, place: str, pool: str) -> UUID:
    """Start the doctor's flow like a round's flow; raise `ObjectNotFound` if not deployed."""
    of_round = place == CONTROLLERS
    copied = client.read_deployment_by_name(
        f"{REGRESSION}/{suite.name}" if of_round else training_deployment(suite.name, place)
    )
    name = f"plumbline-doctor/{suite.name}-{place}"
    fields: dict[str, Any] = {
        "entrypoint": "plumbline.flows.doctor.doctor", "work_pool": pool,
        "tags": ["plumbline-doctor"], "parameters": {},
        "description": "Check the machine of a worker; started by `plumbline doctor --workers`.",
        "cron": None, "timezone": None, "collision_strategy": None,
    }  # fmt: skip
    initial = {"job_variables": copied.job_variables or {}, "concurrency_limit": None}
    _ = create_deployment(client, Item("deployment", name, fields, initial))
    visits = [list(visit) for visit in _visits(suite, place)]
    run = run_deployment(
        name,
        parameters={"visits": visits, "trains": place in suite.platforms},
        timeout=0,
        flow_run_name=f"{place} doctor",
    )
    return cast("FlowRun", run).id


def _visits(suite: Suite, place: str) -> Iterable[Visit]:
    """Return the place's stores, with the required permissions."""
    if place == CONTROLLERS:
        yield Visit("central store", suite.store, "write, replace and read")
        for name, platform in suite.platforms.items():
            yield Visit(f"{name}: outbox", platform.outbox, "write and read")
        return
    platform = suite.platforms[place]
    for dataset in sorted({workload.data for workload in suite.workloads.values()}):
        yield Visit("data", platform.data, "read", dataset)
    yield Visit("outbox", platform.outbox, "write and read")


def _answer(state: State, asked: datetime) -> _Answer:
    if state.is_completed() and state.message:
        return _Answer(state.message, "", "", asked, datetime.now(UTC))
    return _no_answer(f"{state.name}: {state.message}", "see its worker's log")


def _no_answer(why: str, hint: str) -> _Answer:
    now = datetime.now(UTC)
    return _Answer("", why, hint, now, now)
