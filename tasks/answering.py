"""What Prefect's server answers when it does not do what was asked, as an error that a person can mend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from httpx import HTTPError
from prefect.exceptions import PrefectHTTPStatusError

from plumbline.errors import ConfigurationError, UnavailableError

__all__ = ["answering"]

_SERVER = 500


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
