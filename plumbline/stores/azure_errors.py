"""Conversion of Azure's errors, by the codes of its API.

Sources: https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and common-rest-api-error-codes.
"""

from __future__ import annotations

from typing import Any

from plumbline.errors import AccessError, ConfigurationError, PlumblineError, Refusal
from plumbline.stores.body import retry_after
from plumbline.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)

__all__ = ["ProtectedError", "no_credentials", "response_error", "sdk_error"]

_HINT = "check the credentials of this environment: AZURE_STORAGE_* variables or identity"
_PROTECTED_HINT = (
    "an immutability policy, a legal hold or a lease protects the object: "
    "keep replaceable objects in a different container"
)
_CONFLICT_HINT = (
    "a folder or a different kind of blob has this name, the blob has snapshots, "
    "or the account does not allow this operation"
)
_EXISTS = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "PathAlreadyExists", "409"}
_PROTECTED = {
    "BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "ContainerImmutableDueToPolicy", "LeaseIdMissing",
    "LeaseIdMismatchWithBlobOperation", "LeaseIdMismatchWithContainerOperation",
}  # fmt: skip
_PASSING = {
    "AccountBeingCreated", "ContainerBeingDeleted", "ContainerDisabled", "OperationTimedOut", "ServerBusy",
    "PendingCopyOperation", "BlobBeingRehydrated",
}  # fmt: skip
_REFUSALS = {
    **dict.fromkeys(
        (
            "AuthorizationPermissionMismatch", "InsufficientAccountPermissions", "AuthorizationResourceTypeMismatch",
            "AuthorizationServiceMismatch", "AuthorizationProtocolMismatch", "AuthorizationSourceIPMismatch", "403",
        ),
        Refusal.PERMISSIONS,
    ),
    **dict.fromkeys(
        (
            "AuthenticationFailed", "AuthorizationFailure", "InvalidAuthenticationInfo", "NoAuthenticationInformation",
            "KeyBasedAuthenticationNotPermitted", "401",
        ),
        Refusal.CREDENTIALS,
    ),
}  # fmt: skip


class ProtectedError(ConfigurationError):
    """Error: a policy protects the object."""


def response_error(status: int, code: str, retry: str, where: str, key: str) -> PlumblineError:
    """Return the error of a refused request; `retry` is its Retry-After header."""
    if status in (412, 304) and code not in _PROTECTED:
        return PreconditionFailedError("the object has changed", where=where, key=key)
    if status == 409 and code in _EXISTS:
        return ObjectExistsError("exists already", where=where, key=key)
    if status == 404:
        kind, what = (
            (BucketMissingError, "container") if code == "ContainerNotFound" else (ObjectMissingError, "object")
        )
        return kind(f"no such {what}", where=where, key=key)
    if status in (401, 403) or code in _REFUSALS:
        text, refusal = f"refused: HTTP {status} {code}", _REFUSALS.get(code, Refusal.UNKNOWN)
        return AccessError(text, where=where, key=key, hint=_HINT, refusal=refusal)
    if status >= 500 or status in (0, 408, 429) or code in _PASSING:
        wait = retry_after(retry)
        return StoreUnavailableError(f"HTTP {status} {code}", where=where, retry_after_seconds=wait)
    return _permanent_error(status, code, where, key)


def _permanent_error(status: int, code: str, where: str, key: str) -> ConfigurationError:
    if code in _PROTECTED:
        return ProtectedError(f"refused: HTTP {status} {code}", where=where, key=key, hint=_PROTECTED_HINT)
    hint = "check the account's endpoint" if 300 <= status < 400 else _CONFLICT_HINT if status == 409 else ""
    return ConfigurationError(f"HTTP {status} {code}", where=where, key=key, hint=hint)


def sdk_error(error: Exception, where: str, key: str) -> PlumblineError:
    """Return the error of a failed call of the SDK."""
    from azure.core import exceptions

    converted = None
    if isinstance(error, exceptions.HttpResponseError) and error.response is not None:
        status = int(error.status_code or error.response.status_code or 0)
        retry = str(getattr(error.response, "headers", {}).get("Retry-After", ""))
        converted = response_error(status, _code(error, status), retry, where, key)
    if isinstance(error, exceptions.ClientAuthenticationError):
        # Entra refuses an identity with HTTP 400 or 404 too, which say something else of a blob.
        return converted if isinstance(converted, (AccessError, StoreUnavailableError)) else no_credentials(where, key)
    if converted is not None:
        return converted
    if isinstance(error, (exceptions.ServiceRequestError, exceptions.ServiceResponseError)):
        return StoreUnavailableError(f"no answer: {type(error).__name__}", where=where)
    return StoreUnavailableError(f"{type(error).__name__} of the SDK", where=where)


def no_credentials(where: str, key: str) -> AccessError:
    """Return the error of missing or damaged credentials."""
    return AccessError("no usable credentials", where=where, key=key, hint=_HINT, refusal=Refusal.CREDENTIALS)


def _code(error: Any, status: int) -> str:
    """Return the service's error code; its message may contain a signature."""
    code = getattr(error, "error_code", None) or status
    return str(getattr(code, "value", code))
