"""Conversion of botocore's errors: of its calls, and of errors while its credentials are found.

Source: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plumbline.errors import ConfigurationError, PlumblineError
from plumbline.stores.body import retry_after
from plumbline.stores.protocol import StoreUnavailableError
from plumbline.stores.service_errors import S3, Answer, no_credentials, response_error, unsendable

__all__ = ["api_errors", "credential_errors"]

_BUSY_TOKEN_SERVICE = {
    "IDPCommunicationError", "RequestLimitExceeded", "RequestTimeout", "Throttling", "ThrottlingException",
    "TooManyRequestsException",
}  # fmt: skip


@contextmanager
def api_errors(where: str, key: str = "", *, is_anonymous: bool = False) -> Iterator[None]:
    """Convert the errors of a call of botocore."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise response_error(S3, _answer(error), where, key, is_anonymous=is_anonymous) from error
    except (BotoCoreError, ResponseParserError, RuntimeError) as error:
        raise _call_error(error, where) from error


@contextmanager
def credential_errors(where: str) -> Iterator[None]:
    """Convert the errors of finding or renewing credentials, by which no object was requested yet.

    A role's token service answers with its own `ClientError`. Files and tools of credentials fail with errors of the
    system, and botocore raises `RuntimeError` for renewed credentials that have ended already.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        status, code, retry = _answer(error)
        text = f"{error.operation_name} answered HTTP {status} {code}"
        if status >= 500 or status in (408, 429) or code in _BUSY_TOKEN_SERVICE:
            wait = retry_after(retry)
            raise StoreUnavailableError(f"no credentials: {text}", where=where, retry_after_seconds=wait) from error
        raise no_credentials(S3, where, why=text) from error
    except (BotoCoreError, ResponseParserError, RuntimeError, OSError, ValueError) as error:
        raise (_passing_error(error, where) or no_credentials(S3, where, why=type(error).__name__)) from error


def _answer(error: Any) -> Answer:
    meta = error.response.get("ResponseMetadata", {})
    code = str(error.response.get("Error", {}).get("Code", ""))
    return Answer(int(meta.get("HTTPStatusCode", 0)), code, str(meta.get("HTTPHeaders", {}).get("retry-after", "")))


def _call_error(error: Exception, where: str) -> PlumblineError:
    from botocore import exceptions

    if refused := unsendable(error, where):
        return refused
    if passing := _passing_error(error, where):
        return passing
    name = type(error).__name__
    # Credentials may also end between their check and the signature of a request.
    credentials = (exceptions.CredentialRetrievalError, exceptions.NoCredentialsError, RuntimeError)
    if isinstance(error, credentials):
        return no_credentials(S3, where, why=name)
    return ConfigurationError(f"the S3 client refuses: {name}", where=where)


def _passing_error(error: Exception, where: str) -> StoreUnavailableError | None:
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    passing = (
        exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError,
    )  # fmt: skip
    if not isinstance(error, passing):
        return None
    return StoreUnavailableError(f"no answer: {type(error).__name__}", where=where)
