"""Dispatch of a batch of trainings to their platforms."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from prefect import task

from plumbline.central import find_record
from plumbline.deployment import job_variables, suite_tag, training_deployment
from plumbline.dispatch import Limits, Recorded, Result, TrainingOrder, idempotency_key, run_jobs
from plumbline.errors import PlumblineError
from plumbline.rounds import Assignment, Round
from plumbline.stores import Store, open_store
from plumbline.tasks.prefect_client.flow_runs import start_run
from plumbline.tasks.prefect_client.orchestrator import PrefectOrchestrator
from plumbline.tasks.prefect_client.platform_apis import PlatformApis, open_apis, platform_clocks


@task(name="dispatch", persist_result=False)
def dispatch_trainings(round_: Round, assignments: Sequence[Assignment], limits: Limits) -> dict[Assignment, Result]:
    """Run the assignments, all platforms in parallel; leave no child running."""
    jobs = {round_.job(assignment).key: assignment for assignment in assignments}
    platforms = round_.suite.platforms
    outboxes = {name: open_store(platform.outbox) for name, platform in platforms.items()}
    with open_apis(round_.suite) as apis:
        clocks = platform_clocks(apis, {assignment.platform for assignment in assignments})
        orchestrator = PrefectOrchestrator(
            apis,
            round_.suite.name,
            {name: platform.work_pool for name, platform in platforms.items()},
            start=lambda order, key: _start(apis, round_, jobs[key], order, clocks[order.platform]()),
            orders=lambda key, attempt: round_.order(jobs[key], attempt),
            recorded=partial(_find_record, outboxes),
        )
        results = run_jobs(
            [round_.job(assignment) for assignment in assignments],
            orchestrator,
            clock=time.monotonic,
            sleep=time.sleep,
            limits=limits,
        )
    return {jobs[key]: result for key, result in results.items()}


def _start(apis: PlatformApis, round_: Round, assignment: Assignment, order: TrainingOrder, due: datetime) -> UUID:
    return start_run(
        apis, order.platform, training_deployment(round_.suite.name, order.platform),
        parameters={"order": order.to_json()}, name=assignment.run_name(round_.night),
        tags=[suite_tag(round_.suite.name), f"round:{round_.id}", f"platform:{order.platform}"],
        key=idempotency_key(round_.suite.name, order.record_id), due=due,
        job_variables=job_variables(round_.suite.platforms[order.platform], assignment.image),
    )  # fmt: skip


def _find_record(outboxes: Mapping[str, Store], order: TrainingOrder) -> Recorded | None:
    try:
        return find_record(outboxes[order.platform], order)
    except PlumblineError:
        return None
