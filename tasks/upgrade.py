"""Upgrade gate on every platform: dispatch, judge on workers, report, alert."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, cast

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import open_store
from plumbline.environments.installed import base_of
from plumbline.environments.locks import parse_lock, read_lock
from plumbline.environments.package_store import claimed
from plumbline.night.central import CentralStore, upload_policy
from plumbline.night.deployment import REGRESSION, gate_deployment, job_variables
from plumbline.night.dispatch import Result
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.documents import round_secret, round_specs
from plumbline.schema.command import CommandWorkload
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.suite import Suite
from plumbline.schema.variables import variable
from plumbline.tasks.alert import alert_once
from plumbline.tasks.dispatch import dispatch_trainings, gather_records, run_on_workers
from plumbline.tasks.download import download
from plumbline.tasks.events import ProgressReporter
from plumbline.tasks.machines import Machines
from plumbline.tasks.open_round import check_suite, refuse_superseded
from plumbline.tasks.prefect_client.flow_runs import check_image_pools
from plumbline.tasks.round_task import round_task
from plumbline.tasks.train import orphan_watch
from plumbline.upgrade.campaign import UpgradeOptions
from plumbline.upgrade.image_answer import ImageUpgrade, wanted, with_gathered
from plumbline.upgrade.orders import (
    PlatformReport,
    UpgradeOrder,
    fetch_lock,
    fetch_report,
    find_report,
    publish_lock,
    publish_report,
)
from plumbline.upgrade.outcome import (
    PlatformOutcome,
    UpgradeOutcome,
    alerts_of,
    keep_outcome,
    platform_outcome,
    sum_up,
    summary,
)
from plumbline.upgrade.request import LockUpgrade, UpgradeRequest, read_candidate, read_image
from plumbline.upgrade.session import Locks, UpgradeSettings, judge_upgrade
from plumbline.upgrade.shipped import with_digests, with_files

_CLAIM_SECONDS = 120.0
"""Seconds to wait for the work folder, which a lost attempt may still use."""


def start_round(suite: Suite) -> str:
    """Start the deployed round for an event; return its name."""
    name = f"{REGRESSION}/{suite.name}"
    key = f"{name}-{flow_run.id}"
    return cast("FlowRun", run_deployment(name, timeout=0, as_subflow=False, idempotency_key=key)).name


@round_task("open upgrade")
def open_upgrade(request: UpgradeRequest) -> LockUpgrade | ImageUpgrade:
    """Validate the upgrade request, and read the candidate."""
    request = request.replace(suite=check_suite(request.suite))
    return _open_image(request) if request.candidate.image else _open_lock(request)


def _open_lock(request: UpgradeRequest) -> LockUpgrade:
    """Upload the candidate lock to every platform's outbox."""
    suite, chosen = request.suite, request.chosen_platforms
    lock = read_candidate(request.candidate, suite, partial(download, key="candidate.url"))
    get_run_logger().info("candidate %s, sha256 %s", lock.name, lock.digest)
    for outbox in {suite.platforms[name].outbox for name in chosen}:
        publish_lock(open_store(outbox), lock)
    central, workload = CentralStore(open_store(suite.store)), request.chosen_workload
    if isinstance(suite.workloads[workload], CommandWorkload):
        specs = round_specs(central, suite.replace(workloads={workload: suite.workloads[workload]}), request.upgrade_id)
        request = request.replace(suite=with_digests(suite, workload, specs[workload]))
    return LockUpgrade(request, lock, round_secret(central, suite.name, request.upgrade_id))


def _open_image(request: UpgradeRequest) -> ImageUpgrade:
    """Check the work pools for an image; read the published specs."""
    suite, name = request.suite, request.chosen_workload
    if request.options.releases:
        what = "an image is one change: it has no releases to search"
        raise ConfigurationError(what, where=suite.name, key="releases", hint="leave it out")
    image = read_image(request.candidate)
    check_image_pools(suite, request.chosen_platforms)
    central = CentralStore(open_store(suite.store))
    specs = round_specs(central, suite.replace(workloads={name: suite.workloads[name]}), request.upgrade_id)
    round_ = Round(request.upgrade_id, suite, specs, round_secret(central, suite.name, request.upgrade_id))
    return ImageUpgrade(request, round_, image)


def train_candidate(upgrade: LockUpgrade | ImageUpgrade, machines: Machines) -> UpgradeOutcome:
    """Judge the candidate on all platforms in parallel."""
    if isinstance(upgrade, ImageUpgrade):
        outcomes, candidate = _train_in_both_images(upgrade, machines), upgrade.image
        digest = candidate.rpartition(":")[2]
    else:
        outcomes, candidate, digest = dispatch_upgrade(upgrade, machines), upgrade.lock.name, upgrade.lock.digest
    request = upgrade.request
    return sum_up(
        outcomes, upgrade=request.upgrade_id, suite=request.suite.name, workload=request.chosen_workload,
        candidate=candidate, candidate_sha256=digest, flow_run=url_for("flow-run", flow_run.id) or "",
    )  # fmt: skip


@round_task("dispatch upgrade")
def dispatch_upgrade(upgrade: LockUpgrade, machines: Machines) -> dict[str, PlatformOutcome]:
    """Judge the candidate lock on each platform's worker, leaving none running."""
    suite, chosen = upgrade.request.suite, upgrade.request.chosen_platforms
    names = {upgrade.job(name).key: name for name in chosen}

    def run_of(key: str, order: UpgradeOrder) -> dict[str, Any]:
        content = {**order.to_json(), "suite": order.suite.model_dump(mode="json", exclude_defaults=True)}
        return {
            "deployment": gate_deployment(suite.name, names[key]),
            "name": f"{names[key]} upgrade {upgrade.request.upgrade_id}",
            "parameters": {"order": content},
            "job_variables": job_variables(suite.platforms[names[key]]),
        }

    results = run_on_workers(
        suite, upgrade.request.upgrade_id, [upgrade.job(name) for name in chosen], run_of, machines=machines,
        orders=lambda key, attempt: upgrade.order(names[key], attempt), find=find_report,
    )  # fmt: skip
    outcomes = {}
    for key, result in results.items():
        report, why = _report(upgrade, names[key], result)
        outcomes[names[key]] = platform_outcome(report, why, result.notes, suite, names[key])
    return outcomes


def _report(upgrade: LockUpgrade, name: str, result: Result) -> tuple[PlatformReport | None, str]:
    if result.attempt is None:
        return None, result.why
    try:
        order = upgrade.order(name, result.attempt)
        return fetch_report(open_store(order.outbox), order), ""
    except PlumblineError as error:
        return None, str(error)


def _train_in_both_images(upgrade: ImageUpgrade, machines: Machines) -> dict[str, PlatformOutcome]:
    """Train with old and new image on each platform until decided."""
    options = upgrade.request.options
    trainings = {name: upgrade.begin(name) for name in upgrade.request.chosen_platforms}
    notes: dict[Assignment, tuple[str, ...]] = {}
    ends = time.monotonic() + options.seconds
    with scratch_folder() as folder:
        while asked := [assignment for each in trainings.values() for assignment in wanted(each, options.trials)]:
            results = dispatch_trainings(upgrade.round, asked, machines)
            gathered = gather_records(upgrade.round, results, folder)
            notes |= gathered.notes
            trainings = {name: with_gathered(each, gathered) for name, each in trainings.items()}
            if time.monotonic() > ends:
                break
        return {name: upgrade.outcome(each, notes) for name, each in trainings.items()}


@round_task("publish upgrade", retries=2)
def publish_upgrade(outcome: UpgradeOutcome, suite: Suite) -> UpgradeOutcome:
    """Store pages and outcome centrally, and a summary in Prefect's UI."""
    check = partial(refuse_superseded, suite, outcome.upgrade)
    outcome = keep_outcome(CentralStore(open_store(suite.store)), outcome, check)
    key = f"{outcome.suite}-upgrade".replace("_", "-").replace(".", "-")
    create_markdown_artifact(summary(outcome), key=key, description=f"Upgrade {outcome.upgrade}: {outcome.verdict}")
    resource = {"prefect.resource.id": f"plumbline.upgrade.{outcome.suite}.{outcome.upgrade}"}
    emit_event(f"plumbline.upgrade.{outcome.verdict}", resource=resource, payload={"upgrade": outcome.upgrade})
    return outcome


def alert_about_upgrade(suite: Suite, outcome: UpgradeOutcome) -> list[str]:
    """Alert about platforms that did not pass; return failed deliveries."""
    return alert_once(suite, list(alerts_of(outcome)))


@task(name="gate", task_run_name="{order.record_id}", persist_result=False)
def judge_here(order: UpgradeOrder) -> PlatformReport:
    """Judge the candidate in this worker's environment, and publish the report."""
    work = Path(variable("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser().resolve() / "upgrade"
    logger, began = get_run_logger(), time.monotonic()
    found: dict[str, object] = {"record_id": order.record_id, "platform": order.platform, "nonce": order.nonce}
    with ProgressReporter(logger) as progress, orphan_watch() as is_orphaned:

        def say(line: str) -> None:
            logger.info("%s", line)
            progress.show(0.0, "upgrade", f"upgrade: {line}"[:300])

        try:
            base = base_of(order.suite.platforms[order.platform].python)
            if base.lock and base.lock.is_file():
                found["current_sha256"] = digest_file(base.lock)
            locks = Locks(
                parse_lock(fetch_lock(open_store(order.outbox), order.lock_sha256), markers=base.markers),
                read_lock(base.lock, markers=base.markers) if base.lock else None,
            )
            options = UpgradeOptions(**{name: getattr(order, name) for name in UpgradeOptions.model_fields})
            settings = UpgradeSettings(work, options=options, base=base)
            # A lost attempt may still use the folder.
            with (
                claimed(work, wait_seconds=_CLAIM_SECONDS),
                with_files(order.suite, order.workload, order.platform, work / "cache") as suite,
            ):
                answer = judge_upgrade(suite, order.workload, locks, settings, say, should_stop=is_orphaned.is_set)
            report = PlatformReport(**found, answer=answer)
        except PlumblineError as error:
            if is_orphaned.is_set():
                raise  # no controller waits for the report
            report = PlatformReport(**found, error=str(error)[:4000], exit_code=int(error.exit_code))
        publish_report(open_store(order.outbox, policy=upload_policy(time.monotonic() - began)), report)
    return report
