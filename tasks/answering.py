"""What Prefect's server answers when it does not do what was asked, as an error that a person can mend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from httpx import HTTPError
from prefect import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from plumbline.errors import AccessError, ConfigurationError, UnavailableError

__all__ = ["answering", "wait_for_api"]

_SERVER = 500
_POLL_SECONDS = 0.2


@contextmanager
def answering() -> Iterator[None]:
    """Raise `ConfigurationError` for a request that the server refuses, `UnavailableError` where it does not answer."""
    where = "Prefect's server"
    try:
        yield
    except PrefectHTTPStatusError as error:
        status, body = error.response.status_code, error.response.text[:300]
        if status >= _SERVER:
            raise UnavailableError(f"HTTP {status}", where=where, mend="its log tells") from error
        raise ConfigurationError(f"refuses: HTTP {status} {body}", where=where) from error
    except HTTPError as error:
        raise UnavailableError(f"went away: {error or type(error).__name__}", where=where) from error


def wait_for_api(seconds: float) -> None:
    """Return when the Prefect API answers; `UnavailableError` if it does not in time, `AccessError` if it refuses.

    `ConfigurationError` where nobody said which API that is.
    """
    if PREFECT_API_URL.value() is None:
        # Prefect would start a server of its own, for this process alone, and what is deployed there serves nobody.
        mend = "set it to the server's address: http://HOST:4200/api"
        raise ConfigurationError("PREFECT_API_URL is not set", mend=mend)
    deadline = time.monotonic() + seconds
    with get_client(sync_client=True) as client:
        where = str(client.api_url).rstrip("/")
        while (error := client.api_healthcheck()) is not None:
            if time.monotonic() > deadline:
                mend = "set PREFECT_API_URL, or start the server"
                raise UnavailableError(f"no answer: {_line(error)}", where=where, mend=mend)
            time.sleep(_POLL_SECONDS)
        try:
            # Its health, a server tells to everyone; the rest only to those who may ask.
            client.hello()
        except PrefectHTTPStatusError as refusal:
            status = refusal.response.status_code
            if status not in (401, 403):
                raise UnavailableError(f"no answer: HTTP {status}", where=where) from refusal
            mend = "set PREFECT_API_KEY, or PREFECT_API_AUTH_STRING for a server of your own"
            raise AccessError(f"wrong credentials: HTTP {status}", where=where, mend=mend) from refusal


def _line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
