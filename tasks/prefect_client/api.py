"""Prefect server access: reachability, errors, clock, database, schedules."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from json import JSONDecodeError
from typing import Any, TypeVar

from httpx import Client, HTTPError, InvalidURL, Response, SyncByteStream, UnsupportedProtocol
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

from plumbline.data.stores.body import retry_after
from plumbline.night.alerts import Planned
from plumbline.night.deployment import suite_tag
from plumbline.schema.base import first_problem
from plumbline.schema.errors import AccessError, ConfigurationError, UnavailableError
from plumbline.schema.extras import require_version
from plumbline.schema.suite import Schedule
from plumbline.schema.variables import variable_error


class NotPrefectError(HTTPError):
    """Error: something other than Prefect's API responds, such as a login page."""


PREFECT_ERRORS = (HTTPError, PrefectHTTPStatusError, ValidationError, JSONDecodeError, OSError)
"""Errors of a restarting server, a locked database or a proxy in between, which the next poll may not see."""

PAGE = 200
"""Number of objects that a Prefect server returns at most for one request."""
T = TypeVar("T")
_REFUSED, _BUSY, _MISSING, _SERVER_ERROR = (401, 403, 407), (408, 429), 404, 500
_PLAIN = "identity"
_MOST_BYTES = 64 << 20
_MOST_WAIT = 30.0
"""Maximum seconds for which an answer delays the next request."""
_POLL_SECONDS = 0.2
_CLOCK_SECONDS = 2.0
"""Difference of two clocks above which the server is asked again, and the wait before that."""
_DATE = re.compile(r"\d{1,2} [A-Z][a-z]{2} 20\d\d \d\d:\d\d:\d\d GMT")


def paged(read: Callable[..., list[T]]) -> list[T]:
    """Return all objects of a paginated request; `read` takes `limit` and `offset`."""
    found: list[T] = []
    while len(page := read(limit=PAGE, offset=len(found))) == PAGE:
        found += page
    return found + page


class _Bounded(SyncByteStream):
    """Body of a response that is read up to a maximum size."""

    def __init__(self, stream: SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self._stream:
            size += len(chunk)
            if size > _MOST_BYTES:
                raise NotPrefectError(f"an answer of more than {_MOST_BYTES >> 20} MiB")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def check_answer(response: Response) -> None:
    """Raise `NotPrefectError` if an HTTP response is not from Prefect's API, and bound its size and its wait.

    A redirect to a different address is not followed: it may lead to a machine that only this one reaches. A body that
    is compressed without being asked for may be a thousand times larger in memory.
    """
    if response.headers.get("Content-Encoding", _PLAIN).lower() != _PLAIN:
        raise NotPrefectError("a compressed answer, which was not asked for")
    if isinstance(response.stream, SyncByteStream):
        response.stream = _Bounded(response.stream)
    if "Retry-After" in response.headers:
        # Prefect's client waits for as long as the server says.
        seconds = retry_after(response.headers["Retry-After"])
        response.headers["Retry-After"] = f"{_MOST_WAIT if seconds is None else min(seconds, _MOST_WAIT):g}"
    status, kind = response.status_code, response.headers.get("Content-Type", "")
    if response.has_redirect_location:
        try:
            target = response.url.join(response.headers["Location"])
        except InvalidURL as error:
            raise NotPrefectError(f"HTTP {status}, a redirect to no address") from error
        if (target.scheme, target.host, target.port) != (response.url.scheme, response.url.host, response.url.port):
            raise NotPrefectError(f"HTTP {status}, a redirect to a different address")
    elif status < _SERVER_ERROR and status not in (*_REFUSED, *_BUSY) and "json" not in kind and _has_body(response):
        raise NotPrefectError(f"HTTP {status} with a page instead of JSON")


def _has_body(response: Response) -> bool:
    return response.status_code != HTTPStatus.NO_CONTENT and response.headers.get("Content-Length") != "0"


def client_settings() -> dict[str, Any]:
    """Return HTTP client settings that reject responses of non-Prefect servers."""
    return {"event_hooks": {"response": [check_answer]}, "headers": {"Accept-Encoding": _PLAIN}}


def open_client() -> SyncPrefectClient:
    """Return a client for the controller's Prefect API."""
    try:
        return get_client(httpx_settings=client_settings(), sync_client=True)
    except (ImportError, InvalidURL, OSError, ValueError):
        make_client().close()
        raise


def make_client(**options: Any) -> Client:
    """Return an HTTP client without an address. Raise `ConfigurationError` for a variable that makes it impossible."""
    try:
        return Client(**options)
    except (ImportError, InvalidURL, OSError, ValueError) as error:
        raise variable_error(error) or error from error


@contextmanager
def server_errors(
    where: str = "Prefect's server",
    setting: str = "PREFECT_API_URL",
    key_hint: str = "set PREFECT_API_KEY, or PREFECT_API_AUTH_STRING for a server of your own",
) -> Iterator[None]:
    """Convert the Prefect client's errors to user-readable errors.

    Raises `ConfigurationError` if Prefect's API is not there or refuses a request, `AccessError` for refused
    credentials, and `UnavailableError` if it does not answer. `setting` has the address.
    """
    try:
        yield
    except PrefectHTTPStatusError as error:
        status = error.response.status_code
        if status in _REFUSED:
            raise AccessError(f"wrong credentials: HTTP {status}", where=where, hint=key_hint) from error
        if status >= _SERVER_ERROR or status in _BUSY:
            hint = "see the log of the server, and of a proxy in front of it"
            raise UnavailableError(f"no answer: HTTP {status}", where=where, hint=hint) from error
        what = f"refused the request: HTTP {status} {error.response.text[:300]}"
        raise ConfigurationError(what, where=where) from error
    except (NotPrefectError, ValidationError, JSONDecodeError, InvalidURL, UnsupportedProtocol) as error:
        hint = f"check that {setting} ends in /api, and that no login or different service answers there"
        raise ConfigurationError(f"not Prefect's API: {first_line(error)}", where=where, hint=hint) from error
    except (HTTPError, TimeoutError) as error:
        text = first_line(error)
        raise UnavailableError(f"no answer: {text}", where=where, hint=_away_hint(text, setting)) from error


def _away_hint(text: str, setting: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "set PREFECT_API_SSL_CERT_FILE to the certificate of the server's authority"
    if "[SSL" in text:
        return f"write http:// in {setting}: the server there does not speak https"
    return f"set {setting}, or start the server"


def wait_for_api(seconds: float, say: Callable[[str], None] = lambda _: None) -> None:
    """Wait until the Prefect API responds, with one message while waiting.

    Raises the errors of `server_errors`: `UnavailableError` after `seconds`, any other one at once, also if
    PREFECT_API_URL is not set, or for a version of Prefect that does not fit.
    """
    require_version("prefect")
    if (address := PREFECT_API_URL.value()) is None:
        # Prefect would start a temporary server for this process.
        raise ConfigurationError(
            "PREFECT_API_URL is not set", hint="set it to the server's address: http://HOST:4200/api"
        )
    where, deadline, is_said = address.rstrip("/"), time.monotonic() + seconds, False
    with server_errors(where), open_client() as client:
        while True:
            try:
                with server_errors(where):
                    return check_api(client)
            except UnavailableError as error:
                if time.monotonic() > deadline:
                    raise
                if not is_said:
                    say(f"{where}: {error.what}; waiting for at most {seconds:.0f} s")
                    is_said = True
            time.sleep(_POLL_SECONDS)


def check_api(client: SyncPrefectClient) -> None:
    """Send a request that requires credentials, unlike Prefect's health check."""
    try:
        client.hello()
    except PrefectHTTPStatusError as error:
        if error.response.status_code == _MISSING:
            raise NotPrefectError(f"HTTP {_MISSING}") from error
        raise


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or the error's type."""
    return str(error).partition("\n")[0] or type(error).__name__


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Server time, with this machine's times before and after the request."""

    server: datetime
    asked: datetime
    answered: datetime

    @property
    def difference_seconds(self) -> float:
        """Return the minimum clock difference to the server, in seconds."""
        behind, ahead = self.asked - self.server, self.server - self.answered
        return max(behind.total_seconds(), ahead.total_seconds(), 0.0)


def read_clock(client: SyncPrefectClient, sleep: Callable[[float], None] = time.sleep) -> ClockReading | None:
    """Read the server's and this machine's time; `None` without a Date header.

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
    """Return a clock that follows the server's time.

    The server's time is read to the second, and carried on by a monotonic clock; the local time is used where the
    server's cannot be read.
    """
    reading = None
    with suppress(*PREFECT_ERRORS):
        reading = read_clock(client, sleep)
    offset = reading.server - reading.answered if reading is not None else timedelta()
    start, at = datetime.now(UTC) + offset, time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - at)


def server_time() -> datetime:
    """Return the server's time, by default this machine's."""
    with open_client() as client:
        return server_clock(client)()


_SEVERAL = 2
_MOST_NAMES = 5
_TAG = suite_tag("")


def database_remark(client: SyncPrefectClient) -> str:
    """Return advice on using PostgreSQL if several suites are deployed, else "".

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
        f"the server runs {len(suites)} suites ({names}), and may run on SQLite, which its API does not show: there,"
        " requests fail with 'database is locked' and live workers count as offline; PostgreSQL serves them"
    )


def check_schedule(schedule: Schedule, where: str) -> None:
    """Raise `ConfigurationError` for a cron string or time zone that Prefect rejects."""
    try:
        CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValidationError as error:
        key, reason = first_problem(error)
        hint = "five fields, such as '0 2 * * *', and an IANA time zone"
        raise ConfigurationError(reason, where=where, key=f"schedule.{key}", hint=hint) from error


def read_planned(client: SyncPrefectClient, name: str, since: datetime) -> Planned | None:
    """Return a deployment's flow runs due since `since`; `None` if not deployed.

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
