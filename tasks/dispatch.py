"""Dispatch of training orders to platforms, and collection of the round's records."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from plumbline.data.stores import RetryPolicy, Store, open_store
from plumbline.night.central import CentralStore, find_record
from plumbline.night.deployment import job_variables, suite_tag, training_deployment
from plumbline.night.dispatch import Job, Recorded, Result, TrainingOrder, idempotency_key, run_jobs
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.gathered import GatheredRecords, harvest
from plumbline.schema.errors import PlumblineError
from plumbline.schema.suite import Suite
from plumbline.tasks.machines import Machines
from plumbline.tasks.prefect_client.flow_runs import start_run
from plumbline.tasks.prefect_client.orchestrator import OrderType, PrefectOrchestrator
from plumbline.tasks.prefect_client.platform_apis import open_apis, platform_clocks
from plumbline.tasks.round_task import round_task

# Dispatch has seen the record: wait for a temporarily unreachable outbox.
PATIENCE = RetryPolicy(attempts=20, deadline_seconds=90.0)


@round_task("dispatch")
def dispatch_trainings(
    round_: Round, assignments: Sequence[Assignment], machines: Machines
) -> dict[Assignment, Result]:
    """Run the assigned trainings on all platforms in parallel, leaving none running."""
    asked = {round_.job(assignment).key: assignment for assignment in assignments}
    suite = round_.suite

    def run_of(key: str, order: TrainingOrder) -> dict[str, Any]:
        assignment = asked[key]
        return {
            "deployment": training_deployment(suite.name, assignment.platform),
            "name": assignment.run_name(round_.night),
            "parameters": {"order": order.to_json()},
            "job_variables": job_variables(suite.platforms[assignment.platform], assignment.image),
        }

    results = run_on_workers(
        suite, round_.id, [round_.job(assignment) for assignment in assignments], run_of, machines=machines,
        orders=lambda key, attempt: round_.order(asked[key], attempt), find=find_record,
    )  # fmt: skip
    return {asked[key]: result for key, result in results.items()}


def run_on_workers(
    suite: Suite,
    round_id: str,
    jobs: Sequence[Job],
    run_of: Callable[[str, OrderType], dict[str, Any]],
    *,
    machines: Machines,
    orders: Callable[[str, int], OrderType],
    find: Callable[[Store, OrderType], Recorded],
) -> dict[str, Result]:
    """Run jobs on their platforms' workers; return results by key.

    `orders` makes the order of a job's attempt, `run_of` describes its flow run, and `find` looks for its record in the
    platform's outbox.
    """
    platforms = {job.platform for job in jobs}
    outboxes = {name: open_store(suite.platforms[name].outbox) for name in platforms}

    def find_recorded(order: OrderType) -> Recorded | None:
        with suppress(PlumblineError):
            return find(outboxes[order.platform], order)
        return None

    with open_apis(suite) as apis:
        clocks = platform_clocks(apis, platforms)

        def start(order: OrderType, key: str) -> UUID:
            return start_run(
                apis, order.platform, **run_of(key, order), key=idempotency_key(suite.name, order.record_id),
                tags=[suite_tag(suite.name), f"round:{round_id}", f"platform:{order.platform}"],
                due=clocks[order.platform](),
            )  # fmt: skip

        pools = {name: suite.platforms[name].work_pool for name in platforms}
        orchestrator = PrefectOrchestrator(apis, suite.name, pools, start=start, orders=orders, recorded=find_recorded)
        return run_jobs(jobs, orchestrator, clock=time.monotonic, sleep=time.sleep, keep_up=machines.keep_up)


@round_task("gather", retries=2)
def gather_records(round_: Round, results: Mapping[Assignment, Result], folder: Path) -> GatheredRecords:
    """Collect all dispatched records (idempotent, so Prefect can retry)."""
    outboxes = {name: open_store(platform.outbox, policy=PATIENCE) for name, platform in round_.suite.platforms.items()}
    central = CentralStore(open_store(round_.suite.store))
    return harvest(round_, results, outboxes, central, folder, now=datetime.now(UTC))
