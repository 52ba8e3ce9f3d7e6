"""Upgrade gate on every platform: dispatch, judge on each worker, report, alert."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import httpx
from prefect import get_client, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.central import CentralStore
from plumbline.deployment import REGRESSION, gate_deployment, suite_tag
from plumbline.digest import digest_file
from plumbline.dispatch import Job, Limits, Recorded, Result, job_key, record_id, run_jobs
from plumbline.errors import ConfigurationError, PlumblineError, UnavailableError
from plumbline.rounds.secret import round_secret
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from plumbline.upgrade.campaign import Budget
from plumbline.upgrade.candidate import Candidate, read_candidate
from plumbline.upgrade.locks import LockFiles, parse_lock, read_lock
from plumbline.upgrade.orders import (
    PlatformReport,
    UpgradeOrder,
    fetch_lock,
    fetch_report,
    find_report,
    nonce_of,
    publish_lock,
    publish_report,
    suite_of,
)
from plumbline.upgrade.outcome import UpgradeOutcome, alerts_of, keep_outcome, platform_outcome, sum_up, summary
from plumbline.upgrade.relay import Relay
from plumbline.upgrade.session import Locks, UpgradeSettings, judge_upgrade, workload_of
from plumbline.upgrade.work import claimed
from tasks.alert import alert_once
from tasks.events import ProgressReporter
from tasks.open_round import check_suite
from tasks.prefect_client.api import server_clock
from tasks.prefect_client.orchestrator import PrefectOrchestrator
from tasks.share_trials import relaying, share_trials
from tasks.train import PATIENCE, orphan_watch

__all__ = [
    "Upgrade",
    "alert_about_upgrade",
    "chosen_platforms",
    "dispatch_upgrade",
    "judge_here",
    "open_upgrade",
    "publish_upgrade",
    "start_round",
]

_SPARE_SECONDS = 600.0
"""Seconds after the budget, for the last trial and the report."""
_DOWNLOAD_SECONDS = 30.0
_CLAIM_SECONDS = 120.0
"""Seconds to wait for the work folder, which a lost attempt may still use."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """One candidate lock, with the platforms that judge it."""

    id: str
    suite: Suite
    workload: str
    platforms: tuple[str, ...]
    lock: LockFiles
    secret: str
    budget: Budget
    releases: bool = False
    """Whether the releases of a culprit are searched, too."""

    def job(self, platform: str) -> Job:
        """Return the dispatch job of a platform."""
        chosen = self.suite.platforms[platform]
        return Job(
            key=job_key(self.id, platform, "upgrade"), platform=platform, start_seconds=chosen.start_seconds,
            run_seconds=self.budget.seconds + _SPARE_SECONDS, retries=chosen.retries,
        )  # fmt: skip

    def order(self, platform: str, attempt: int) -> UpgradeOrder:
        """Return the worker's order for this attempt."""
        name = record_id(self.job(platform).key, attempt)
        return UpgradeOrder(
            platform=platform, outbox=self.suite.platforms[platform].outbox, record_id=name, upgrade_id=self.id,
            attempt=attempt, nonce=nonce_of(self.secret, name), suite=suite_of(self.suite, platform, self.workload),
            workload=self.workload, lock_sha256=self.lock.digest, trials=self.budget.trials,
            seconds=self.budget.seconds, releases=self.releases,
            shares=len(self.platforms) > 1,
        )  # fmt: skip


def start_round(suite: Suite) -> str:
    """Start the deployed round after an event without a lock; return the run's name."""
    name = f"{REGRESSION}/{suite.name}"
    key = f"{name}-{flow_run.id}"
    return cast("FlowRun", run_deployment(name, timeout=0, as_subflow=False, idempotency_key=key)).name


def chosen_platforms(suite: Suite, platforms: Sequence[str]) -> tuple[str, ...]:
    """Return the named platforms in the suite's order, all of them where none is named."""
    if unknown := sorted(set(platforms) - suite.platforms.keys()):
        hint = f"one of {', '.join(suite.platforms)}"
        raise ConfigurationError(f"unknown: {', '.join(unknown)}", where="parameters", key="platforms", hint=hint)
    return tuple(name for name in suite.platforms if not platforms or name in platforms)


@task(name="open upgrade", persist_result=False)
def open_upgrade(
    suite: Suite, upgrade_id: str, candidate: Candidate, *, platforms: Sequence[str], workload: str, budget: Budget,
    releases: bool = False,
) -> Upgrade:  # fmt: skip
    """Read the candidate, and put it into the outbox of every platform."""
    suite = check_suite(suite)
    chosen = chosen_platforms(suite, platforms)
    lock = read_candidate(candidate, _download)
    get_run_logger().info("candidate %s, sha256 %s", lock.name, lock.digest)
    for outbox in {suite.platforms[name].outbox for name in chosen}:
        publish_lock(open_store(outbox), lock)
    secret = round_secret(CentralStore(open_store(suite.store)), upgrade_id)
    return Upgrade(upgrade_id, suite, workload_of(suite, workload or None), chosen, lock, secret, budget, releases)


def _download(url: str, max_bytes: int) -> bytes:
    data = bytearray()
    try:
        with httpx.stream("GET", url, timeout=_DOWNLOAD_SECONDS, follow_redirects=True) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > max_bytes:
                    raise ConfigurationError(f"more than {max_bytes >> 20} MiB", where=url, key="candidate.url")
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise ConfigurationError(f"answered HTTP {status}", where=url, key="candidate.url") from error
    except httpx.HTTPError as error:
        raise UnavailableError(f"cannot be read: {error or type(error).__name__}", where=url) from error
    return bytes(data)


@task(name="dispatch upgrade", persist_result=False)
def dispatch_upgrade(upgrade: Upgrade) -> UpgradeOutcome:
    """Judge the candidate on all platforms in parallel; leave no child running."""
    suite = upgrade.suite
    names = {upgrade.job(name).key: name for name in upgrade.platforms}
    outboxes = {name: open_store(suite.platforms[name].outbox) for name in upgrade.platforms}

    def find(order: UpgradeOrder) -> Recorded | None:
        with suppress(PlumblineError):
            return find_report(outboxes[order.platform], order)
        return None

    relay = Relay(outboxes)
    with get_client(sync_client=True) as client, relaying(relay):
        now = server_clock(client)
        orchestrator = PrefectOrchestrator(
            client, {name: suite.platforms[name].work_pool for name in upgrade.platforms},
            start=lambda order, _: _start(upgrade, order, now(), relay).id,
            orders=lambda key, attempt: upgrade.order(names[key], attempt),
            recorded=find,
        )  # fmt: skip
        jobs = [upgrade.job(name) for name in upgrade.platforms]
        results = run_jobs(jobs, orchestrator, clock=time.monotonic, sleep=time.sleep, limits=Limits())
    outcomes = {}
    for key, result in results.items():
        name = names[key]
        report, why = _report(upgrade, name, result)
        outcomes[name] = platform_outcome(report, why, result.notes, suite, name)
    return sum_up(
        outcomes, upgrade=upgrade.id, suite=suite.name, workload=upgrade.workload, candidate=upgrade.lock.name,
        candidate_sha256=upgrade.lock.digest, flow_run=url_for("flow-run", flow_run.id) or "",
    )  # fmt: skip


def _start(upgrade: Upgrade, order: UpgradeOrder, due: datetime, relay: Relay) -> FlowRun:
    relay.start(order.platform, order.record_id)
    suite = upgrade.suite.name
    parameters = {"order": {**order.to_json(), "suite": order.suite.model_dump(mode="json", exclude_defaults=True)}}
    run = run_deployment(
        gate_deployment(suite, order.platform),
        parameters=parameters,
        flow_run_name=f"{order.platform} upgrade {upgrade.id}",
        tags=[suite_tag(suite), f"round:{upgrade.id}", f"platform:{order.platform}"],
        idempotency_key=order.record_id,
        scheduled_time=due,
        timeout=0,
    )
    return cast("FlowRun", run)


def _report(upgrade: Upgrade, name: str, result: Result) -> tuple[PlatformReport | None, str]:
    if result.attempt is None:
        return None, result.why
    try:
        order = upgrade.order(name, result.attempt)
        return fetch_report(open_store(order.outbox), order), ""
    except PlumblineError as error:
        return None, str(error)


@task(name="publish upgrade", persist_result=False, retries=2, retry_delay_seconds=5)
def publish_upgrade(outcome: UpgradeOutcome, store: str) -> UpgradeOutcome:
    """Store pages and outcome in the central store, and the summary in Prefect's UI."""
    outcome = keep_outcome(CentralStore(open_store(store)), outcome)
    key = f"{outcome.suite}-upgrade".replace("_", "-").replace(".", "-")
    create_markdown_artifact(summary(outcome), key=key, description=f"Upgrade {outcome.upgrade}: {outcome.verdict}")
    resource = {"prefect.resource.id": f"plumbline.upgrade.{outcome.suite}.{outcome.upgrade}"}
    emit_event(f"plumbline.upgrade.{outcome.verdict}", resource=resource, payload={"upgrade": outcome.upgrade})
    return outcome


def alert_about_upgrade(suite: Suite, outcome: UpgradeOutcome) -> list[str]:
    """Alert about each platform that did not pass; return the failed deliveries as lines."""
    return alert_once(suite, list(alerts_of(outcome)))


@contextmanager
def _claimed(work: Path) -> Iterator[None]:
    """Lock the work folder; wait for the process that holds it."""
    deadline = time.monotonic() + _CLAIM_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(claimed(work))
                break
            except ConfigurationError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1.0)
        yield


@task(name="gate", task_run_name="{order.record_id}", persist_result=False)
def judge_here(order: UpgradeOrder) -> PlatformReport:
    """Judge the candidate in this worker's environment, and publish the report."""
    work = Path(os.environ.get("PLUMBLINE_CACHE", "~/.cache/plumbline")).expanduser().resolve() / "upgrade"
    logger = get_run_logger()
    current = os.environ.get("PLUMBLINE_LOCK", "")
    found: dict[str, object] = {"record_id": order.record_id, "platform": order.platform, "nonce": order.nonce}
    with ProgressReporter(logger) as progress, orphan_watch() as is_orphaned:

        def say(line: str) -> None:
            logger.info("%s", line)
            progress.show(0.0, "upgrade", f"upgrade: {line}"[:300])

        try:
            if current and Path(current).is_file():
                found["current_sha256"] = digest_file(Path(current))
            locks = Locks(
                parse_lock(fetch_lock(open_store(order.outbox), order.lock_sha256)),
                read_lock(Path(current)) if current else None,
            )
            budget = Budget(order.trials, order.seconds)
            settings = UpgradeSettings(work, budget=budget, searches_releases=order.releases)
            with _claimed(work):
                answer = judge_upgrade(
                    order.suite, order.workload, locks, settings, say,
                    share=partial(share_trials, order, say, is_orphaned.is_set) if order.shares else None,
                    should_stop=is_orphaned.is_set,
                )  # fmt: skip
            report = PlatformReport(**found, answer=answer)
        except PlumblineError as error:
            if is_orphaned.is_set():
                raise  # no controller waits for the report
            report = PlatformReport(**found, error=str(error)[:4000], exit_code=int(error.exit_code))
        publish_report(open_store(order.outbox, policy=PATIENCE), report)
    return report
