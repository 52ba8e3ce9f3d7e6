"""Conversion of S3's errors, by the codes of its API.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

from plumbline.errors import AccessError, ConfigurationError, PlumblineError, Refusal
from plumbline.stores.body import retry_after
from plumbline.stores.protocol import (
    BucketMissingError,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)

__all__ = ["client_error", "response_error"]

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
    if status >= 500 or status == 429 or code in _PASSING:
        wait = retry_after(retry)
        return StoreUnavailableError(f"HTTP {status} {code}", where=where, retry_after_seconds=wait)
    hint = "check the bucket's region and the endpoint" if 300 <= status < 400 else ""
    return ConfigurationError(f"HTTP {status} {code}", where=where, key=key, hint=hint)


def client_error(error: Exception, where: str, key: str = "") -> PlumblineError:
    """Return the error of a failed call of botocore."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        meta = error.response.get("ResponseMetadata", {})
        retry = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
        code = str(error.response.get("Error", {}).get("Code", ""))
        return response_error(int(meta.get("HTTPStatusCode", 0)), code, retry, where, key)
    name = type(error).__name__
    credentials = (
        exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError, exceptions.SSOError,
    )  # fmt: skip
    if isinstance(error, credentials):
        text = f"no usable credentials: {name}"
        return AccessError(text, where=where, hint=_CREDENTIALS_HINT, refusal=Refusal.CREDENTIALS)
    passing = (
        exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError,
    )  # fmt: skip
    if isinstance(error, passing):
        return StoreUnavailableError(f"no answer: {name}", where=where)
    return ConfigurationError(f"the S3 client refuses: {name}", where=where)
