"""Checks of the workers, by the doctor flow in every work pool."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from plumbline.night.deployment import REGRESSION, Item, job_variables, training_deployment
from plumbline.night.doctor import CheckResult, ExpectedStack, Report, examine_report
from plumbline.night.doctor.checks import failed, from_error
from plumbline.night.doctor.stores import Visit
from plumbline.schema.errors import ExitCode, InvalidInputError, PlumblineError
from plumbline.schema.suite import Suite
from plumbline.schema.versions import read_any_version
from plumbline.tasks.doctor import CONTROLLERS
from plumbline.tasks.prefect_client.api import server_errors
from plumbline.tasks.prefect_client.deployments import create_deployment
from plumbline.tasks.prefect_client.flow_runs import start_run
from plumbline.tasks.prefect_client.platform_apis import PlatformApis, open_apis, platform_errors

_DEPLOY = "run `plumbline deploy SUITE`"
_POLL_SECONDS = 0.5
_CHECK_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """A worker's report or failure reason, with request times."""

    report: str
    why: str
    hint: str
    asked: datetime
    answered: datetime


def check_workers(suite: Suite, pools: Mapping[str, str]) -> list[CheckResult]:
    """Run the doctor flow in each pool, and compare torch versions."""
    results: list[CheckResult] = []
    reports: dict[str, tuple[Report, _Answer]] = {}
    try:
        with server_errors():
            answers = _ask(suite, pools)
    except PlumblineError as error:
        return [from_error("Prefect API", error)]
    for name, answer in answers.items():
        where = f"{name}'s worker"
        if answer.why:
            results.append(failed(where, answer.why, answer.hint, ExitCode.INCONCLUSIVE))
            continue
        try:
            reports[name] = read_any_version(Report, answer.report.encode(), version_at="plumbline"), answer
        except InvalidInputError as error:
            results.append(failed(where, error.what, "install the same version of plumbline on every worker"))
    torch = reports[suite.reference][0].torch if suite.reference in reports else ""
    for name, (report, answer) in reports.items():
        platform = suite.platforms.get(name)
        # Controllers run without torch and without a GPU.
        is_own = platform is not None and bool(platform.python or suite.platforms[suite.reference].python)
        expected = ExpectedStack(
            # Environments that a suite names are meant to differ.
            torch=report.torch if platform is None or is_own else torch,
            accelerator=platform.accelerator if platform else "",
            gpus=platform.gpus if platform else ExpectedStack().gpus,
        )
        results += examine_report(name, report, expected, answer.asked, answer.answered)
    return results


def _ask(suite: Suite, pools: Mapping[str, str]) -> dict[str, _Answer]:
    """Start one run per pool, and collect the reports."""
    answers: dict[str, _Answer] = {}
    runs: dict[str, UUID] = {}
    with open_apis(suite) as apis:
        for name, pool in pools.items():
            try:
                with platform_errors(suite, name):
                    runs[name] = _start(apis, suite, name, pool)
            except PlumblineError as error:
                answers[name] = _no_answer(error.what, error.hint)
            except ObjectNotFound:
                answers[name] = _no_answer(f"{training_deployment(suite.name, name)} is not deployed", _DEPLOY)
        began, asked = time.monotonic(), dict.fromkeys(runs, datetime.now(UTC))
        while left := runs.keys() - answers.keys():
            for name in left:
                seconds = _start_seconds(suite, name) + _CHECK_SECONDS
                is_late = time.monotonic() - began > seconds
                read = partial(_read_state, run_id=runs[name], is_late=is_late)
                try:
                    with platform_errors(suite, name):
                        state = apis.ask(apis.of(name), read)
                except PlumblineError as error:
                    answers[name] = _no_answer(error.what, error.hint)
                    continue
                if state and state.is_final():
                    answers[name] = _answer(state, asked[name])
                elif is_late:
                    hint = f"check for a different run in {pools[name]}, and its worker's log"
                    answers[name] = _no_answer(f"did not answer within {seconds:g} s", hint)
                elif not (state and state.is_running()):
                    asked[name] = datetime.now(UTC)
            time.sleep(_POLL_SECONDS)
    return answers


def _read_state(client: SyncPrefectClient, run_id: UUID, *, is_late: bool) -> State | None:
    """Return a run's state; cancel the run if late."""
    state = client.read_flow_run(run_id).state
    if is_late and not (state and state.is_final()):
        client.set_flow_run_state(run_id, Cancelled(), force=True)
    return state


def _start_seconds(suite: Suite, place: str) -> float:
    platforms = suite.platforms.values() if place == CONTROLLERS else [suite.platforms[place]]
    return max(platform.start_seconds for platform in platforms)


def _start(apis: PlatformApis, suite: Suite, place: str, pool: str) -> UUID:
    """Start the doctor flow; raise `ObjectNotFound` if not deployed."""
    client, of_round = apis.of(place), place == CONTROLLERS
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
    parameters = {"visits": visits, **_training(suite, place)}
    variables = job_variables(suite.platforms[place]) if place in suite.platforms else None
    return start_run(apis, place, name, parameters=parameters, name=f"{place} doctor", job_variables=variables)


def _training(suite: Suite, place: str) -> dict[str, Any]:
    """Return the doctor flow's parameters: whether a platform trains, its Python."""
    platform = suite.platforms.get(place)
    if platform is None:
        return {"trains": False}
    return {"trains": True, "python": platform.python}


def _visits(suite: Suite, place: str) -> Iterable[Visit]:
    """Yield the stores that a platform or the controllers need, with permissions."""
    if place == CONTROLLERS:
        yield Visit("central store", suite.store, "write, replace and read")
        for name, platform in suite.platforms.items():
            yield Visit(f"{name}: outbox", platform.outbox, "write and read")
        return
    platform = suite.platforms[place]
    for dataset in sorted({workload.data for workload in suite.workloads_of(place).values() if workload.data}):
        yield Visit("data", platform.data, "read", dataset)
    yield Visit("outbox", platform.outbox, "write and read")


def _answer(state: State, asked: datetime) -> _Answer:
    if state.is_completed() and state.message:
        return _Answer(state.message, "", "", asked, datetime.now(UTC))
    return _no_answer(f"{state.name}: {state.message}", "see its worker's log")


def _no_answer(why: str, hint: str) -> _Answer:
    now = datetime.now(UTC)
    return _Answer("", why, hint, now, now)
