"""Reads of a bucket's objects, signed by botocore, and conversion of botocore's errors.

A call of the SDK's `get_object` costs more CPU time than a request from here, which shows with shards of 1 MiB.

Errors: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from plumbline import __version__
from plumbline.errors import ConfigurationError, PlumblineError
from plumbline.stores.body import retry_after
from plumbline.stores.direct import DirectReads, DirectResponse
from plumbline.stores.protocol import StoreUnavailableError
from plumbline.stores.service_errors import S3, Answer, no_credentials, response_error, unsendable
from plumbline.variables import variable

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
    from botocore.exceptions import BotoCoreError, ClientError, MissingDependencyException
    from botocore.parsers import ResponseParserError

    try:
        yield
    except MissingDependencyException as error:
        text = "a session of `aws login` needs a further package of botocore"
        raise no_credentials(S3, where, why=text, hint="`pip install awscrt`, or use a different profile") from error
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


_MOST_ERROR_BYTES = 64 << 10
_LINK_SECONDS = 3600
_PATTERN = rb"<%b>([A-Za-z0-9.-]{1,80})</%b>"


class S3Reads:
    """GETs of one bucket's objects."""

    def __init__(
        self, client: Any, credentials: Any, bucket: str, *, connect_seconds: float, read_seconds: float, ca_bundle: str
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._bucket = bucket
        # A link to any object shows how the SDK addresses the bucket, and for which region and service it signs.
        link = urlsplit(self._link("x"))
        self._origin, self._root = f"{link.scheme}://{link.netloc}", link.path[:-1]
        if self.is_anonymous:
            self.region, self._service = str(client.meta.region_name), "s3"
        else:
            *_, self.region, self._service, _ = parse_qs(link.query)["X-Amz-Credential"][0].split("/")
        self._pool = DirectReads(
            self._origin, connect_seconds=connect_seconds, read_seconds=read_seconds, ca_bundle=ca_bundle
        )

    @property
    def is_anonymous(self) -> bool:
        """Return whether this environment has no credentials, so that requests are not signed."""
        return self._credentials is None

    def _link(self, name: str) -> str:
        address = {"Bucket": self._bucket, "Key": name}
        return str(self._client.generate_presigned_url("get_object", Params=address, ExpiresIn=_LINK_SECONDS))

    def renew(self) -> None:
        """Renew credentials that end soon; raise the errors that `credential_errors` converts."""
        if self._credentials is not None:
            self._credentials.get_frozen_credentials()

    def get(self, name: str, headers: Mapping[str, str], *, where: str) -> DirectResponse:
        """Request an object; raise the errors that `api_errors` converts."""
        payer = variable("PLUMBLINE_S3_REQUEST_PAYER")
        given = {**headers, **({"x-amz-request-payer": payer} if payer else {})}
        # As in the SDK: store operators identify callers by this variable.
        agent = f"plumbline/{__version__} app/{variable('AWS_SDK_UA_APP_ID')}".removesuffix(" app/")
        if self._service == "s3":
            target = self._root + quote(name, safe="/-_.~")
            return self._pool.get(target, {"User-Agent": agent, **self._signed(target, given)}, where=where)
        # A directory bucket needs sessions of its own, which the SDK opens when it makes a link.
        link = urlsplit(self._link(name))
        return self._pool.get(f"{link.path}?{link.query}", {"User-Agent": agent, **given}, where=where)

    def _signed(self, target: str, headers: Mapping[str, str]) -> dict[str, str]:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest

        if self.is_anonymous:
            return dict(headers)
        request = AWSRequest("GET", self._origin + target, headers=dict(headers))
        S3SigV4Auth(self._credentials.get_frozen_credentials(), self._service, self.region).add_auth(request)
        return dict(request.headers.items())


def error_code(response: DirectResponse) -> tuple[str, str]:
    """Return the error code and the region that an error's XML names; close the response."""
    try:
        body = response.read(_MOST_ERROR_BYTES)
    except (OSError, HTTPException):
        body = b""
    finally:
        response.release(at_end=False)
    matches = (re.search(_PATTERN % (name, name), body) for name in (b"Code", b"Region"))
    code, region = (match[1].decode() if match else "" for match in matches)
    return code, region


def redirected_region(response: DirectResponse, named: str, ours: str) -> str:
    """Return the bucket's region if a refusal names a different one than `ours`, else ""."""
    region = response.header("x-amz-bucket-region") or named
    return region if response.status in (301, 307, 400) and region != ours else ""
