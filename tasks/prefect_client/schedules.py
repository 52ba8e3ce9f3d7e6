"""Schedules on a Prefect server: what it accepts, and which flow runs it has planned."""

from __future__ import annotations

from datetime import UTC, datetime

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from plumbline.alerts import Planned
from plumbline.errors import ConfigurationError
from plumbline.schema.base import first_problem
from plumbline.schema.suite import Schedule

__all__ = ["check_schedule", "read_planned"]

_PAGE = 200


def check_schedule(schedule: Schedule, where: str) -> None:
    """Raise `ConfigurationError` for a cron or a time zone that Prefect refuses."""
    try:
        CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValidationError as error:
        key, reason = first_problem(error)
        hint = "five fields, such as '0 2 * * *', and an IANA time zone"
        raise ConfigurationError(reason, where=where, key=f"schedule.{key}", hint=hint) from error


def read_planned(client: SyncPrefectClient, name: str, since: datetime) -> Planned | None:
    """Return the flow runs of a deployment that are due since `since`; `None` if it does not exist.

    A deployment without a schedule counts as active: nobody has paused it.
    """
    try:
        found = client.read_deployment_by_name(name)
    except ObjectNotFound:
        return None
    schedules = found.schedules
    wanted = FlowRunFilter(
        expected_start_time=FlowRunFilterExpectedStartTime(after_=since),
        state=FlowRunFilterState(type=FlowRunFilterStateType(not_any_=[StateType.CANCELLED])),
    )
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[found.id])),
        flow_run_filter=wanted,
        # If there are too many, the newest decide.
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_PAGE,
    )
    is_active = not found.paused and (not schedules or any(schedule.active for schedule in schedules))
    # Prefect's own kind of time becomes one without a time zone in some sums.
    stamps = sorted(run.expected_start_time.timestamp() for run in runs if run.expected_start_time is not None)
    return Planned(is_active, tuple(datetime.fromtimestamp(stamp, UTC) for stamp in stamps))
