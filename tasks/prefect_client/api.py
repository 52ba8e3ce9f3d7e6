"""Reachability, errors, clock, database and schedules of a Prefect server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TypeVar

from httpx import HTTPError
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    DeploymentFilterTags,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL
from pydantic import ValidationError

from plumbline.alerts import Planned
from plumbline.deployment import suite_tag
from plumbline.errors import AccessError, ConfigurationError, UnavailableError
from plumbline.extras import require_version
from plumbline.schema.base import first_problem
from plumbline.schema.suite import Schedule

PREFECT_ERRORS = (HTTPError, PrefectHTTPStatusError, OSError)
"""Errors of a restarting server or a locked database, which the next poll may not see."""

PAGE = 200
"""Number of objects that a Prefect server returns at most for one request."""
T = TypeVar("T")
_SERVER_ERROR = 500
_POLL_SECONDS = 0.2
_CLOCK_SECONDS = 2.0
"""Difference of two clocks above which the server is asked again, and the wait before that."""
_DATE = re.compile(r"\d{1,2} [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT")


def paged(read: Callable[..., list[T]]) -> list[T]:
    """Return all objects of a request, page by page; `read` takes `limit` and `offset`."""
    found: list[T] = []
    while len(page := read(limit=PAGE, offset=len(found))) == PAGE:
        found += page
    return found + page


@contextmanager
def server_errors() -> Iterator[None]:
    """Convert refused requests to `ConfigurationError`, failures to `UnavailableError`."""
    where = "Prefect's server"
    try:
        yield
    except PrefectHTTPStatusError as error:
        status, body = error.response.status_code, error.response.text[:300]
        if status >= _SERVER_ERROR:
            raise UnavailableError(f"answered HTTP {status}", where=where, hint="see its log") from error
        raise ConfigurationError(f"refused the request: HTTP {status} {body}", where=where) from error
    except HTTPError as error:
        raise UnavailableError(f"connection failed: {error or type(error).__name__}", where=where) from error


def wait_for_api(seconds: float, say: Callable[[str], None] = lambda _: None) -> None:
    """Wait until the Prefect API answers; say once that it does not yet.

    Raises `UnavailableError` after `seconds`, `AccessError` for refused credentials, and `ConfigurationError` if
    PREFECT_API_URL is not set, or for a version of Prefect that does not fit.
    """
    require_version("prefect")
    if PREFECT_API_URL.value() is None:
        # Prefect would start a temporary server for this process.
        raise ConfigurationError(
            "PREFECT_API_URL is not set", hint="set it to the server's address: http://HOST:4200/api"
        )
    deadline, is_said = time.monotonic() + seconds, False
    with get_client(sync_client=True) as client:
        where = str(client.api_url).rstrip("/")
        while (error := _ping(client, where)) is not None:
            if time.monotonic() > deadline:
                hint = "set PREFECT_API_URL, or start the server"
                raise UnavailableError(f"no answer: {first_line(error)}", where=where, hint=hint)
            if not is_said:
                say(f"{where}: no answer: {first_line(error)}; waiting for at most {seconds:.0f} s")
                is_said = True
            time.sleep(_POLL_SECONDS)


def check_api(client: SyncPrefectClient, hint: str) -> None:
    """Raise `UnavailableError` or `AccessError` unless the client's API answers; `hint` is about its key."""
    where = str(client.api_url).rstrip("/")
    try:
        error = _ping(client, where)
    except AccessError as refusal:
        raise AccessError(refusal.what, where=where, hint=hint) from refusal
    if error is not None:
        raise UnavailableError(f"no answer: {first_line(error)}", where=where, hint="check platforms.NAME.api")


def _ping(client: SyncPrefectClient, where: str) -> Exception | None:
    """Return why the server does not answer now; raise for a server that refuses this client."""
    if (error := client.api_healthcheck()) is not None:
        return error
    try:
        _check_credentials(client, where)
    except HTTPError as stopped:  # between the two requests
        return stopped
    return None


def _check_credentials(client: SyncPrefectClient, where: str) -> None:
    """Check the credentials with a request that requires them, unlike the health check."""
    try:
        client.hello()
    except PrefectHTTPStatusError as refusal:
        status = refusal.response.status_code
        if status not in (401, 403):
            hint = "check that PREFECT_API_URL ends in /api"
            raise UnavailableError(f"answered HTTP {status}", where=where, hint=hint) from refusal
        hint = "set PREFECT_API_KEY, or PREFECT_API_AUTH_STRING for a server of your own"
        raise AccessError(f"wrong credentials: HTTP {status}", where=where, hint=hint) from refusal


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its type."""
    return str(error).partition("\n")[0] or type(error).__name__


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The server's time, and this machine's before and after."""

    server: datetime
    asked: datetime
    answered: datetime

    @property
    def difference_seconds(self) -> float:
        """Return by how much the clocks differ at least, without its sign."""
        behind, ahead = self.asked - self.server, self.server - self.answered
        return max(behind.total_seconds(), ahead.total_seconds(), 0.0)


def read_clock(client: SyncPrefectClient, sleep: Callable[[float], None] = time.sleep) -> ClockReading | None:
    """Return the reading of the server's clock that differs least; `None` if the server sends no date.

    The Date header of a busy server is old, as the server renews it once a second, and a proxy may add a header of its
    own clock. So the server is asked again if the clocks seem to differ.
    """
    readings = _ask_time(client)
    if readings and min(reading.difference_seconds for reading in readings) > _CLOCK_SECONDS:
        sleep(_CLOCK_SECONDS)
        readings += _ask_time(client)
    return min(readings, key=lambda reading: reading.difference_seconds, default=None)


def _ask_time(client: SyncPrefectClient) -> list[ClockReading]:
    asked = datetime.now(UTC)
    dates = ", ".join(client.hello().headers.get_list("date"))
    answered = datetime.now(UTC)
    return [ClockReading(parsedate_to_datetime(text), asked, answered) for text in _DATE.findall(dates)]


def server_clock(client: SyncPrefectClient, sleep: Callable[[float], None] = time.sleep) -> Callable[[], datetime]:
    """Return a clock that follows the server's, which decides when a flow run is due.

    The server's time is read to the second, and carried on by a monotonic clock; the local time is used where the
    server's cannot be read.
    """
    reading = None
    with suppress(*PREFECT_ERRORS):
        reading = read_clock(client, sleep)
    offset = reading.server - reading.answered if reading is not None else timedelta()
    start, at = datetime.now(UTC) + offset, time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - at)


_SEVERAL = 2
_MOST_NAMES = 5
_TAG = suite_tag("")


def database_remark(client: SyncPrefectClient) -> str:
    """Return advice if several suites are deployed; "" if not, or if the database is known to be PostgreSQL.

    The API shows the database's driver only if the server was given its address in parts.
    """
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=["plumbline", "plumbline-round"]))
    deployments = paged(partial(client.read_deployments, deployment_filter=tagged))
    tags = [tag for item in deployments for tag in item.tags]
    suites = sorted({tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG)})
    settings = client.request("GET", "/admin/settings").json()
    driver = settings.get("server", {}).get("database", {}).get("driver") or ""
    if len(suites) < _SEVERAL or driver.startswith("postgresql"):
        return ""
    names = ", ".join(suites[:_MOST_NAMES]) + ", ..." * (len(suites) > _MOST_NAMES)
    return (
        f"the server runs {len(suites)} suites ({names}): its database must be PostgreSQL;"
        " with SQLite, requests fail with 'database is locked' and live workers count as offline"
    )


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
        limit=PAGE,
    )
    is_active = not found.paused and (not schedules or any(schedule.active for schedule in schedules))
    # Prefect's own kind of time becomes one without a time zone in some sums.
    stamps = sorted(run.expected_start_time.timestamp() for run in runs if run.expected_start_time is not None)
    return Planned(is_active, tuple(datetime.fromtimestamp(stamp, UTC) for stamp in stamps))
