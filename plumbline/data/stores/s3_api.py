"""GETs of S3 objects, signed by botocore, and conversion of botocore errors.

A call of the SDK's `get_object` costs more CPU time than a request from here, which shows with shards of 1 MiB.

Errors: https://docs.aws.amazon.com/STS/latest/APIReference/CommonErrors.html
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from plumbline import __version__
from plumbline.data.stores.body import retry_after
from plumbline.data.stores.direct import DirectReads, DirectResponse
from plumbline.data.stores.foreign_errors import cause_of
from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.data.stores.service_errors import S3, Answer, no_credentials, response_error, unsendable
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.variables import variable

_BUSY_TOKEN_SERVICE = {
    "IDPCommunicationError", "RequestLimitExceeded", "RequestTimeout", "Throttling", "ThrottlingException",
    "TooManyRequestsException",
}  # fmt: skip


@contextmanager
def api_errors(where: str, key: str = "", *, is_anonymous: bool = False) -> Iterator[None]:
    """Convert the errors of a botocore call."""
    from botocore.exceptions import ClientError

    try:
        yield
    except ClientError as error:
        raise response_error(S3, _answer(error), where, key, is_anonymous=is_anonymous) from error
    except PlumblineError:
        raise
    except Exception as error:
        raise _call_error(error, where) from error


@contextmanager
def credential_errors(where: str, profile: str = "") -> Iterator[None]:
    """Convert errors of finding or renewing credentials, before any object request.

    A role's token service answers with its own `ClientError`. Files and tools of credentials fail with errors of the
    system, and botocore raises `RuntimeError` for renewed credentials that have ended already.
    """
    from botocore.exceptions import ClientError, MissingDependencyException

    service = replace(S3, login=f"`aws sso login --profile {profile}`, or renew its credentials") if profile else S3
    try:
        yield
    except MissingDependencyException as error:
        text = "a session of `aws login` needs a further package of botocore"
        raise no_credentials(S3, where, why=text, hint="`pip install awscrt`, or use a different profile") from error
    except ClientError as error:
        status, code, retry, message = _answer(error)
        text = f"{error.operation_name} answered HTTP {status} {code}"
        if status >= 500 or status in (408, 429) or code in _BUSY_TOKEN_SERVICE:
            wait = retry_after(retry)
            raise StoreUnavailableError(f"no credentials: {text}", where=where, retry_after_seconds=wait) from error
        raise no_credentials(service, where, why=": ".join(filter(None, (text, message)))) from error
    except PlumblineError:
        raise
    except Exception as error:
        raise (_passing_error(error, where) or no_credentials(service, where, why=cause_of(error))) from error


def find_credentials(session: Any, where: str) -> Any:
    """Return the credentials of a botocore session, or `None`.

    A profile that asks for an MFA code is refused where nobody can answer: botocore would wait for a line, or fail.
    """
    # It prints tracebacks of tokens that it cannot renew: one error line is enough.
    logging.getLogger("botocore").setLevel(logging.CRITICAL)
    profile = session.profile or ""
    with credential_errors(where, profile):
        profiles, name, seen = session.full_config.get("profiles", {}), profile or "default", set[str]()
        while name in profiles and name not in seen and not variable("AWS_ACCESS_KEY_ID"):
            seen.add(name)
            given = profiles[name]
            if "mfa_serial" in given and "role_arn" in given and not (sys.stdin and sys.stdin.isatty()):
                raise _mfa_error(where, name)
            name = str(given.get("source_profile", ""))
        credentials = session.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()
        return credentials


def _mfa_error(where: str, profile: str) -> PlumblineError:
    why = f"the profile {profile} asks for an MFA code, and there is no terminal"
    hint = "use an identity without MFA, or the temporary credentials of `aws sts get-session-token`"
    return no_credentials(S3, where, why=why, hint=hint)


def _answer(error: Any) -> Answer:
    meta = error.response.get("ResponseMetadata", {})
    given = error.response.get("Error", {})
    # Of an answer without a body, botocore takes the status for both.
    code, message = str(given.get("Code", "")), str(given.get("Message", ""))
    retry = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
    return Answer(int(meta.get("HTTPStatusCode", 0)), code, retry, message)


def _call_error(error: Exception, where: str) -> PlumblineError:
    from botocore import exceptions

    if refused := unsendable(error, where):
        return refused
    if passing := _passing_error(error, where):
        return passing
    # Credentials may also end between their check and the signature of a request.
    credentials = (exceptions.CredentialRetrievalError, exceptions.NoCredentialsError, RuntimeError)
    if isinstance(error, credentials):
        return no_credentials(S3, where, why=cause_of(error))
    return ConfigurationError(f"the S3 client refuses: {cause_of(error)}", where=where)


def _passing_error(error: Exception, where: str) -> StoreUnavailableError | None:
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    passing = (
        exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError,
    )  # fmt: skip
    if not isinstance(error, passing):
        return None
    return StoreUnavailableError(f"no answer: {cause_of(error)}", where=where)


_LINK_SECONDS = 3600
_REGION = re.compile(r"[a-z0-9-]{1,40}")


class S3Reads:
    """Signed GET requests for one bucket's objects."""

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
        """Return whether the environment has no credentials; requests are then unsigned."""
        return self._credentials is None

    def _link(self, name: str) -> str:
        address = {"Bucket": self._bucket, "Key": name}
        return str(self._client.generate_presigned_url("get_object", Params=address, ExpiresIn=_LINK_SECONDS))

    def renew(self) -> None:
        """Renew credentials that expire soon. Raise the errors that `credential_errors` converts."""
        if self._credentials is not None:
            self._credentials.get_frozen_credentials()

    def get(self, name: str, headers: Mapping[str, str], *, where: str) -> DirectResponse:
        """Request an object. Raise the errors that `api_errors` converts."""
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


def redirected_region(response: DirectResponse, named: str, ours: str) -> str:
    """Return the bucket's region if an error names one other than `ours`."""
    region = response.header("x-amz-bucket-region") or named
    # It becomes a part of the host that gets the next request.
    is_region = _REGION.fullmatch(region) is not None
    return region if response.status in (301, 307, 400) and is_region and region != ours else ""
