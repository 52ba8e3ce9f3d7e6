"""Ask the worker of a platform to look around where it runs."""

from __future__ import annotations

import time
from typing import cast

from prefect import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound

from plumbline.errors import UnavailableError
from plumbline.schema.suite import Suite

__all__ = ["ask_worker"]

_ANSWER_SECONDS = 120.0


def ask_worker(suite: Suite, name: str) -> str:
    """The report of a platform's worker: one run of the doctor's flow, started by whoever takes it."""
    platform = suite.platforms[name]
    datasets = sorted({workload.data for workload in suite.workloads.values()})
    with get_client(sync_client=True) as client:
        try:
            training = client.read_deployment_by_name(f"training/{suite.name}-{name}")
        except ObjectNotFound as error:
            mend = "`plumbline deploy SUITE` makes it"
            raise UnavailableError("is not deployed", where=f"training/{suite.name}-{name}", mend=mend) from error
        client.create_deployment(
            flow_id=client.create_flow_from_name("examine"),
            name=f"{suite.name}-{name}",
            entrypoint="flows.examine.examine",
            work_pool_name=platform.work_pool,
            job_variables=training.job_variables or {},
            tags=["plumbline-doctor"],
            enforce_parameter_schema=False,
        )
        parameters = {"data": platform.data, "outbox": platform.outbox, "datasets": datasets}
        run = cast("FlowRun", run_deployment(f"examine/{suite.name}-{name}", parameters=parameters, timeout=0))
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not (run.state and run.state.is_final()):
            if time.monotonic() > deadline:
                raise UnavailableError(f"did not answer in {_ANSWER_SECONDS:g} s", where=platform.work_pool)
            time.sleep(0.5)
            run = client.read_flow_run(run.id)
        if not run.state.is_completed():
            raise UnavailableError(f"{run.state.name}: {run.state.message}", where=run.name)
        return run.state.message or ""
