"""Reachability, errors and clock of the Prefect API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from httpx import HTTPError
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from plumbline.errors import AccessError, ConfigurationError, UnavailableError

__all__ = ["PREFECT_ERRORS", "server_clock", "server_errors", "wait_for_api"]

PREFECT_ERRORS = (HTTPError, PrefectHTTPStatusError, OSError)
"""Errors of a restarting server or a locked database, which the next poll may not see."""

_SERVER_ERROR = 500
_POLL_SECONDS = 0.2


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
    PREFECT_API_URL is not set.
    """
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
                raise UnavailableError(f"no answer: {_first_line(error)}", where=where, hint=hint)
            if not is_said:
                say(f"{where}: no answer: {_first_line(error)}; waiting for at most {seconds:.0f} s")
                is_said = True
            time.sleep(_POLL_SECONDS)


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


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def server_clock(client: SyncPrefectClient) -> Callable[[], datetime]:
    """Return a clock that follows the server's, which decides when a flow run is due.

    The server's time is read once, to the second, and carried on by a monotonic clock; the local time is used where
    the server's cannot be read.
    """
    try:
        start = parsedate_to_datetime(client.hello().headers["date"])
    except (*PREFECT_ERRORS, KeyError, ValueError):
        start = datetime.now(UTC)
    at = time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - at)
