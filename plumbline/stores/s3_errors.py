"""Conversion of S3's errors, by the codes of its API; of errors while its credentials are found.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html and
https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from plumbline.errors import AccessError, ConfigurationError, PlumblineError, Refusal
from plumbline.stores.body import retry_after
from plumbline.stores.protocol import (
    BucketMissingError,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)

__all__ = ["api_errors", "credential_errors", "response_error"]

_MISSING = {"404", "NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload"}
_REFUSALS = {
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "403"), Refusal.PERMISSIONS),
    **dict.fromkeys(
        (
            "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
            "TokenRefreshRequired", "AuthorizationHeaderMalformed", "401",
        ),
        Refusal.CREDENTIALS,
    ),
    "RequestTimeTooSkewed": Refusal.CLOCK,
}  # fmt: skip
_PASSING = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted", "BadDigest"}
_BUSY_TOKEN_SERVICE = {
    "IDPCommunicationError", "RequestLimitExceeded", "RequestTimeout", "Throttling", "ThrottlingException",
    "TooManyRequestsException",
}  # fmt: skip
_CREDENTIALS_HINT = "check the credentials of this environment: variables, profile or identity"
_CONDITIONS_HINT = "the service must support conditional writes (If-Match, If-None-Match)"


def response_error(status: int, code: str, retry: str, where: str, key: str) -> PlumblineError:
    """Return the error of a refused request; `retry` is its Retry-After header."""
    if status == 412 or code == "PreconditionFailed":
        return PreconditionFailedError("the object has changed", where=where, key=key)
    if code in _MISSING or status == 404:
        is_bucket = not key or code == "NoSuchBucket"
        kind, what = (BucketMissingError, "bucket") if is_bucket else (ObjectMissingError, "object")
        return kind(f"no such {what}", where=where, key=key)
    if code in _REFUSALS or status in (401, 403):
        text, refusal = f"refused: HTTP {status} {code}", _REFUSALS.get(code, Refusal.UNKNOWN)
        return AccessError(text, where=where, key=key, hint=_CREDENTIALS_HINT, refusal=refusal)
    if status == 501 or code == "NotImplemented":
        return ConfigurationError(f"HTTP {status} {code}", where=where, key=key, hint=_CONDITIONS_HINT)
    if status >= 500 or status in (408, 429) or code in _PASSING:
        wait = retry_after(retry)
        return StoreUnavailableError(f"HTTP {status} {code}", where=where, retry_after_seconds=wait)
    hint = "check the bucket's region and the endpoint" if 300 <= status < 400 else ""
    return ConfigurationError(f"HTTP {status} {code}", where=where, key=key, hint=hint)


@contextmanager
def api_errors(where: str, key: str = "") -> Iterator[None]:
    """Convert the errors of a call of botocore."""
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        status, code, retry = _answer(error)
        raise response_error(status, code, retry, where, key) from error
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
        raise _no_credentials(text, where) from error
    except (BotoCoreError, ResponseParserError, RuntimeError, OSError, ValueError) as error:
        raise (_passing_error(error, where) or _no_credentials(type(error).__name__, where)) from error


def _answer(error: Any) -> tuple[int, str, str]:
    """Return a refusal's status, error code and Retry-After header."""
    meta = error.response.get("ResponseMetadata", {})
    code = str(error.response.get("Error", {}).get("Code", ""))
    return int(meta.get("HTTPStatusCode", 0)), code, str(meta.get("HTTPHeaders", {}).get("retry-after", ""))


def _call_error(error: Exception, where: str) -> PlumblineError:
    from botocore import exceptions

    if passing := _passing_error(error, where):
        return passing
    name = type(error).__name__
    # Credentials may also end between their check and the signature of a request.
    credentials = (exceptions.CredentialRetrievalError, exceptions.NoCredentialsError, RuntimeError)
    if isinstance(error, credentials):
        return _no_credentials(name, where)
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


def _no_credentials(why: str, where: str) -> AccessError:
    text = f"no usable credentials: {why}"
    return AccessError(text, where=where, hint=_CREDENTIALS_HINT, refusal=Refusal.CREDENTIALS)
