"""The controller's dispatch task: every training of a batch to its platform, until each has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import cast

from prefect import get_client, task
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment

from plumbline.bundles import has_record
from plumbline.dispatch import Limits, Result, TrainingOrder, run_jobs
from plumbline.errors import PlumblineError
from plumbline.rounds import Assignment, Round
from plumbline.stores import Store, open_store
from tasks.clock import server_clock
from tasks.port import PrefectPort
from tasks.progress import tell_lanes

__all__ = ["deployment_name", "dispatch"]


def deployment_name(suite: str, platform: str) -> str:
    """The deployment of the worker's flow for one platform of a suite."""
    return f"training/{suite}-{platform}"


def _start(this: Round, assignment: Assignment, order: TrainingOrder, due: datetime) -> FlowRun:
    run = run_deployment(
        deployment_name(this.suite.name, order.platform),
        parameters={"order": order.to_json()},
        flow_run_name=assignment.run_name(this.night),
        tags=[f"suite:{this.suite.name}", f"round:{this.id}", f"platform:{order.platform}"],
        idempotency_key=order.record_id,
        scheduled_time=due,
        timeout=0,
    )
    return cast("FlowRun", run)


def _recorded(outboxes: Mapping[str, Store], platform: str, record: str) -> bool | None:
    try:
        return has_record(outboxes[platform], record)
    except PlumblineError:
        return None


@task(name="dispatch", persist_result=False)
def dispatch(this: Round, assignments: Sequence[Assignment], limits: Limits) -> dict[Assignment, Result]:
    """Run the assignments, all platforms at once; whatever happens, no child runs on."""
    jobs = {this.job(assignment).key: assignment for assignment in assignments}
    platforms = this.suite.platforms
    outboxes = {name: open_store(platform.outbox) for name, platform in platforms.items()}
    with get_client(sync_client=True) as client:
        now = server_clock(client)
        port = PrefectPort(
            client,
            {name: platform.work_pool for name, platform in platforms.items()},
            start=lambda order, key: _start(this, jobs[key], order, now()).id,
            orders=lambda key, attempt: this.order(jobs[key], attempt),
            recorded=partial(_recorded, outboxes),
        )
        results = run_jobs(
            [this.job(assignment) for assignment in assignments],
            port,
            clock=time.monotonic,
            sleep=time.sleep,
            tell=lambda lanes: tell_lanes(lanes, port.progress),
            limits=limits,
        )
    return {jobs[key]: result for key, result in results.items()}
