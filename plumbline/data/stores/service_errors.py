"""Conversion of S3, Azure and Google error codes to Plumbline errors.

Sources: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html,
https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes and common-rest-api-error-codes,
https://cloud.google.com/storage/docs/json_api/v1/status-codes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from http.client import InvalidURL
from typing import NamedTuple

from plumbline.data.stores.body import retry_after
from plumbline.data.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError, Refusal
from plumbline.schema.escape import clean, without_secrets
from plumbline.schema.variables import secret_values


class ProtectedError(ConfigurationError):
    """Error: a retention policy or lock protects the object."""


@dataclass(frozen=True, slots=True)
class Service:
    """Names and hints of one cloud service, for error messages."""

    bucket: str
    credentials: str
    """Hint for missing or refused credentials."""
    endpoint: str
    """Hint for a redirection."""
    login: str
    """How a session that has ended is renewed."""
    conflict: str = ""
    """Hint for an unknown conflict (HTTP 409)."""


S3 = Service(
    "bucket",
    "check the credentials of this environment: variables, profile or identity",
    "check the bucket's region and the endpoint",
    "`aws sso login`, or renew the temporary credentials",
)
AZURE = Service(
    "container",
    "check the credentials of this environment: AZURE_STORAGE_* variables or identity",
    "check the account's endpoint",
    "`az login`, or renew the SAS token",
    "a folder or a different kind of blob has this name, the blob has snapshots, "
    "or the account does not allow this operation",
)
GOOGLE = Service(
    "bucket",
    "check the credentials of this environment: GOOGLE_APPLICATION_CREDENTIALS, "
    "`gcloud auth application-default login`, or the machine's service account",
    "check PLUMBLINE_GS_ENDPOINT",
    "`gcloud auth application-default login`, or renew the service account's key",
)


class _Kind(Enum):
    MISSING = "missing"
    NO_BUCKET = "no bucket"
    EXISTS = "exists"
    CHANGED = "changed"
    CREDENTIALS = Refusal.CREDENTIALS
    ENDED = Refusal.ENDED
    KEY = Refusal.KEY
    PERMISSIONS = Refusal.PERMISSIONS
    CLOCK = Refusal.CLOCK
    ARCHIVED = Refusal.ARCHIVED
    REFUSED = Refusal.UNKNOWN
    PROTECTED = "protected"
    PASSING = "passing"
    SETTING = "setting"


_PERMISSION_HINT = "grant this environment's identity the permission: `plumbline doctor --store URL` names it"
_ENDED_HINT = "the session has ended: {login}"
_CLOCK_HINT = "start a time service here (chrony, systemd-timesyncd)"
_KEY_HINT = "grant this environment's identity the use of the key that encrypts the {bucket} (S3: kms:Decrypt, \
kms:GenerateDataKey)"
_RETENTION_HINT = "the bucket's retention or hold protects the object: keep replaceable objects in a different bucket"
_ARCHIVE_HINT = "restore the object first (S3 Glacier), or copy it to a storage class that can be read at once"
_PROTECTED_HINT = (
    "an immutability policy, a legal hold or a lease protects the object: "
    "keep replaceable objects in a different container"
)
_CONDITIONS_HINT = "the service must support conditional writes (If-Match, If-None-Match)"
# Each row: its kind, its hint ("": the service's own), and its codes. A status counts for all codes that are not here,
# and `STATUS/CODE` for the code with that status only. Without a code, an SDK gives the status as the code.
_TABLE: tuple[tuple[_Kind, str, str], ...] = (
    (_Kind.MISSING, "", "404 410 NoSuchKey NotFound NoSuchUpload BlobNotFound notFound"),
    (_Kind.NO_BUCKET, "", "NoSuchBucket ContainerNotFound"),
    (_Kind.EXISTS, "", "BlobAlreadyExists UnauthorizedBlobOverwrite PathAlreadyExists"),
    (_Kind.CHANGED, "", "304 412 PreconditionFailed ConditionNotMet conditionNotMet"),
    (_Kind.CREDENTIALS, "", "401 InvalidToken TokenRefreshRequired AuthenticationFailed AuthorizationFailure"),
    (_Kind.CREDENTIALS, "", "InvalidAuthenticationInfo NoAuthenticationInformation KeyBasedAuthenticationNotPermitted"),
    (_Kind.CREDENTIALS, "", "authError required UNAUTHENTICATED"),
    (_Kind.CREDENTIALS, "the key id is unknown there: check AWS_ACCESS_KEY_ID and the endpoint", "InvalidAccessKeyId"),
    (_Kind.CREDENTIALS, "the secret does not belong to the key id: set both again", "SignatureDoesNotMatch"),
    (_Kind.ENDED, _ENDED_HINT, "ExpiredToken ExpiredTokenException"),
    (_Kind.CREDENTIALS, "set AWS_DEFAULT_REGION to the bucket's region", "AuthorizationHeaderMalformed"),
    (_Kind.PERMISSIONS, _PERMISSION_HINT, "403/403 AccessDenied AllAccessDisabled forbidden insufficientPermissions"),
    (_Kind.PERMISSIONS, _PERMISSION_HINT, "PERMISSION_DENIED AuthorizationPermissionMismatch"),
    (_Kind.PERMISSIONS, _PERMISSION_HINT, "InsufficientAccountPermissions AuthorizationResourceTypeMismatch"),
    (_Kind.PERMISSIONS, _PERMISSION_HINT, "AuthorizationServiceMismatch AuthorizationProtocolMismatch"),
    (_Kind.PERMISSIONS, "allow this machine's address in the account's firewall", "AuthorizationSourceIPMismatch"),
    (_Kind.CLOCK, _CLOCK_HINT, "RequestTimeTooSkewed"),
    (_Kind.ARCHIVED, _ARCHIVE_HINT, "InvalidObjectState"),
    (_Kind.ARCHIVED, "move the blob to the hot or cool tier first", "BlobArchived"),
    (_Kind.ARCHIVED, "wait until the blob is rehydrated, which takes hours", "BlobBeingRehydrated"),
    (_Kind.REFUSED, "", "403"),
    (_Kind.REFUSED, "enable the account again", "AccountIsDisabled accountDisabled"),
    (_Kind.REFUSED, _RETENTION_HINT, "retentionPolicyNotMet objectUnderActiveHold"),
    (_Kind.PROTECTED, _PROTECTED_HINT, "BlobImmutableDueToPolicy BlobImmutableDueToLegalHold LeaseIdMissing"),
    (_Kind.PROTECTED, _PROTECTED_HINT, "ContainerImmutableDueToPolicy LeaseIdMismatchWithBlobOperation"),
    (_Kind.PROTECTED, _PROTECTED_HINT, "LeaseIdMismatchWithContainerOperation"),
    (_Kind.PASSING, "", "0 408 429 RequestTimeout SlowDown ConditionalRequestConflict OperationAborted BadDigest"),
    (_Kind.PASSING, "", "AccountBeingCreated ContainerBeingDeleted ContainerDisabled OperationTimedOut ServerBusy"),
    (_Kind.PASSING, "", "PendingCopyOperation rateLimitExceeded userRateLimitExceeded backendError internalError"),
    (_Kind.SETTING, _CONDITIONS_HINT, "501 NotImplemented"),
    (_Kind.SETTING, "correct the bucket's name in the URL", "InvalidBucketName"),
    (_Kind.SETTING, "a requester-pays bucket bills a project: set GOOGLE_CLOUD_QUOTA_PROJECT", "400/required"),
    (_Kind.SETTING, "a requester-pays bucket bills a project: set GOOGLE_CLOUD_QUOTA_PROJECT", "UserProjectMissing"),
)
_ROWS = {code: (kind, hint) for kind, hint, codes in _TABLE for code in codes.split()}
_CAUSES = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, hint)
    for pattern, kind, hint in (
        (r"\bkms[:.]|kms key|key ?vault", _Kind.KEY, _KEY_HINT),
        (r"skewed|date header too old|difference between the request time", _Kind.CLOCK, _CLOCK_HINT),
        (r"reasonable timeframe", _Kind.CLOCK, _CLOCK_HINT),
        (r"expired|specified time frame|refresh failed|revoked|reauthentication", _Kind.ENDED, _ENDED_HINT),
        (r"sso (session|token)|\b(az|aws) login|AADSTS(50173|70043|700082)", _Kind.ENDED, _ENDED_HINT),
    )
)
"""Causes that a service names in its sentence alone, whatever its code."""
_UNCLEAR = {_Kind.CREDENTIALS, _Kind.PERMISSIONS, _Kind.REFUSED, _Kind.SETTING}
_DETAIL = "authenticationerrordetail:"
"""Begin of the line in which Azure's SDK gives the cause of a general refusal."""
_NOISE = re.compile(r"\s*(RequestId|Time|ErrorCode|Content)\s*:", re.IGNORECASE)
_SIGNED = re.compile(r"(signature found in the HTTP request ')[^']*")
_SENTENCE_CHARS = 300
_HIDDEN = {"ResourceNotFound", "PublicAccessNotPermitted"}
"""Azure's answers to a request without credentials, where the container is not public."""


class Answer(NamedTuple):
    """Error response of a cloud service."""

    status: int
    code: str
    retry: str
    """The Retry-After header."""
    message: str = ""
    """The service's own sentence."""


def response_error(
    service: Service, answer: Answer, where: str, key: str, *, is_anonymous: bool = False
) -> PlumblineError:
    """Convert a cloud service's error response to an error."""
    kind, hint = _row(service, answer)
    text = ": ".join(filter(None, (f"HTTP {answer.status} {clean(answer.code)}".rstrip(), sentence_of(answer.message))))
    if is_anonymous and (answer.code in _HIDDEN or kind in (_Kind.CREDENTIALS, _Kind.PERMISSIONS, _Kind.REFUSED)):
        return no_credentials(service, where, key, f"a request without any is refused, {text}")
    if isinstance(kind.value, Refusal):
        what = f"is archived: {text}" if kind is _Kind.ARCHIVED else f"refused: {text}"
        return AccessError(what, where=where, key=key, hint=hint or service.credentials, refusal=kind.value)
    if kind is _Kind.PASSING:
        return StoreUnavailableError(text, where=where, retry_after_seconds=retry_after(answer.retry))
    is_bucket = kind is _Kind.NO_BUCKET or (kind is _Kind.MISSING and not key)
    errors: dict[_Kind, tuple[type[PlumblineError], str]] = {
        _Kind.NO_BUCKET: (BucketMissingError, f"no such {service.bucket}"),
        _Kind.MISSING: (ObjectMissingError, "no such object"),
        _Kind.EXISTS: (ObjectExistsError, "exists already"),
        _Kind.CHANGED: (PreconditionFailedError, "the object has changed"),
        _Kind.PROTECTED: (ProtectedError, f"refused: {text}"),
        _Kind.SETTING: (ConfigurationError, text),
    }
    error, what = errors[_Kind.NO_BUCKET if is_bucket else kind]
    return error(what, where=where, key=key, hint=hint)


def _row(service: Service, answer: Answer) -> tuple[_Kind, str]:
    """Return error kind and hint, by error code or else HTTP status."""
    status, code, _, message = answer
    known = (_ROWS[name] for name in (f"{status}/{code}", code, str(status)) if name in _ROWS)
    fallback = (_Kind.SETTING, service.conflict if status == 409 else service.endpoint if status < 400 else "")
    kind, hint = next(known, fallback if status < 500 else (_Kind.PASSING, ""))
    if kind in _UNCLEAR:
        kind, hint = _cause(f"{code} {message}") or (kind, hint)
    return kind, hint.format(login=service.login, bucket=service.bucket)


def _cause(text: str) -> tuple[_Kind, str] | None:
    return next(((kind, hint) for pattern, kind, hint in _CAUSES if pattern.search(text)), None)


def sentence_of(message: str) -> str:
    """Return a service's error message in one line, without secrets."""
    lines = without_secrets(message, secret_values()).splitlines()
    said = [line.partition(":")[2] for line in lines if line.lower().startswith(_DETAIL)]
    said = said or [line for line in lines if not _NOISE.match(line)]
    return clean(_SIGNED.sub(r"\1***", " ".join(said)), _SENTENCE_CHARS)


def no_credentials(service: Service, where: str, key: str = "", why: str = "", hint: str = "") -> AccessError:
    """Return the error for missing or damaged credentials."""
    why = sentence_of(why)
    text = f"no usable credentials: {why}" if why else "no usable credentials"
    kind, known = (None if hint else _cause(why)) or (_Kind.CREDENTIALS, hint or service.credentials)
    hint = known.format(login=service.login, bucket=service.bucket)
    return AccessError(text, where=where, key=key, hint=hint, refusal=Refusal(kind.value))


def unsendable(error: BaseException | None, where: str) -> AccessError | None:
    """Return the error for a request that cannot be sent, else `None`.

    The HTTP clients refuse a line break, or a character outside Latin-1, in a key or an endpoint by a `ValueError`.
    """
    while error is not None:
        # A certificate's error is both.
        if isinstance(error, (ValueError, InvalidURL)) and not isinstance(error, OSError):
            text = "no request can be sent: the credentials or the endpoint contain a character that is not allowed"
            hint = "remove line breaks and special characters from them"
            return AccessError(text, where=where, hint=hint, refusal=Refusal.CREDENTIALS)
        error = error.__cause__ or getattr(error, "inner_exception", None) or getattr(error, "kwargs", {}).get("error")
    return None
