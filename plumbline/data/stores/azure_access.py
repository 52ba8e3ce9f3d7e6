"""Access to an Azure storage account: endpoint, credentials, errors.

`AZURE_STORAGE_CONNECTION_STRING` if it names the same account; else `PLUMBLINE_AZURE_ENDPOINT` (`{account}` is filled
in) or the public cloud's address, with `AZURE_STORAGE_KEY`, `AZURE_STORAGE_SAS_TOKEN` or azure-identity's
`DefaultAzureCredential`. An environment without any of them sends requests without credentials, which a public
container answers.

azure-identity's `DefaultAzureCredential` tries a chain of identities and reports all failures as one sentence. The
requests that it sends, seen through azure-core's hooks, show what happened: no response is a failure of the network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit

from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.data.stores.service_errors import AZURE, Answer, no_credentials, response_error, unsendable
from plumbline.schema.errors import AccessError, PlumblineError
from plumbline.schema.variables import variable

_SCOPE = "https://storage.azure.com/.default"
_SAS_SECONDS = 3600.0
_EARLY_SECONDS = 300.0
_ENTRA = re.compile(r"AADSTS\d+:[^\n]*")
_LOGIN = re.compile(r"[^\n]*\baz login\b[^\n]*")


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """Storage account access: endpoint, with key, SAS token, identity, or anonymous."""

    account: str
    endpoint: str
    connection_string: str = ""
    key: str = ""
    sas: str = ""
    identity: Any = None

    @property
    def is_anonymous(self) -> bool:
        """Return whether the environment provides no credentials."""
        return not (self.connection_string or self.key or self.sas or self.identity)

    @property
    def remark(self) -> str:
        """Return a remark if the SAS token has expired, else ""."""
        given = parse_qs(self.sas).get("se", [""])[0]
        with contextlib.suppress(ValueError):
            until = datetime.fromisoformat(given.replace("Z", "+00:00"))
            if until.replace(tzinfo=until.tzinfo or timezone.utc) < datetime.now(timezone.utc):
                return f"the SAS token has expired at {until:%Y-%m-%d %H:%M} UTC"
        return ""

    @property
    def credential(self) -> Any:
        """Return the credential in the form that SDK clients take."""
        if self.key:
            return {"account_name": self.account, "account_key": self.key}
        if self.sas:
            from azure.core.credentials import AzureSasCredential

            return AzureSasCredential(self.sas)
        return self.identity


def find_access(account: str) -> AzureAccess:
    """Read the access to `account` from the environment. Raise `ValueError` for a damaged connection string.

    Raises azure-core's errors if a source of tokens refuses, or does not answer.
    """
    pattern = variable("PLUMBLINE_AZURE_ENDPOINT", "https://{account}.blob.core.windows.net")
    endpoint = pattern.replace("{account}", account)
    text = variable("AZURE_STORAGE_CONNECTION_STRING")
    # The portal's string with a SAS names the account in its addresses alone.
    address = rf"(?i)\bBlobEndpoint=https?://({account}\.|[^/;]+/{account}([/;]|$))"
    if f"AccountName={account};" in f"{text};" or re.search(address, text):
        from azure.core.utils import parse_connection_string

        given = parse_connection_string(text)
        sas = given.get("sharedaccesssignature", "").lstrip("?")
        return AzureAccess(account, endpoint, text, key=given.get("accountkey", ""), sas=sas)
    if key := variable("AZURE_STORAGE_KEY"):
        return AzureAccess(account, endpoint, key=key)
    if token := variable("AZURE_STORAGE_SAS_TOKEN"):
        return AzureAccess(account, endpoint, sas=token.lstrip("?"))
    identity = Identity()
    return AzureAccess(account, endpoint, identity=identity if identity.exists(_SCOPE) else None)


class Renewed:
    """Thread-safe cache of an expiring value, such as a token."""

    def __init__(self, make: Callable[[], tuple[str, float]], clock: Callable[[], float] = time.time) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._value, self._until = "", 0.0

    def get(self) -> str:
        """Return the current value, renewing if needed."""
        with self._lock:
            if self._clock() >= self._until - _EARLY_SECONDS:
                self._value, self._until = self._make()
            return self._value


class ReadAuthorization:
    """Authorization of GET requests: read-only SAS for an hour, or identity token."""

    def __init__(self, access: AzureAccess, container: str) -> None:
        self._access = access
        self._container = container
        self._renewed = Renewed(self._token if access.identity is not None else self._container_sas)

    def _token(self) -> tuple[str, float]:
        token = self._access.identity.get_token(_SCOPE)
        return f"Bearer {token.token}", float(token.expires_on)

    def _container_sas(self) -> tuple[str, float]:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        until = time.time() + _SAS_SECONDS
        sas = generate_container_sas(
            self._access.account, self._container, account_key=self._access.key,
            permission=ContainerSasPermissions(read=True), expiry=datetime.fromtimestamp(until, timezone.utc),
        )  # fmt: skip
        return sas, until

    def apply(self, target: str) -> tuple[str, dict[str, str]]:
        """Return the request target with authorization, and extra headers."""
        if self._access.identity is not None:
            return target, {"Authorization": self._renewed.get(), "x-ms-date": formatdate(usegmt=True)}
        if self._access.is_anonymous:
            return target, {}
        return f"{target}?{self._access.sas if not self._access.key else self._renewed.get()}", {}


def sdk_error(error: Exception, where: str, key: str, access: AzureAccess | None = None) -> PlumblineError:
    """Convert the error of a failed SDK call."""
    from azure.core import exceptions

    converted = None
    if isinstance(error, exceptions.HttpResponseError) and error.response is not None:
        status = int(error.status_code or error.response.status_code or 0)
        retry = str(getattr(error.response, "headers", {}).get("Retry-After", ""))
        answer = Answer(
            status, _code(error, status), retry, (access.remark if access else "") or str(error.message or "")
        )
        converted = response_error(AZURE, answer, where, key, is_anonymous=access is not None and access.is_anonymous)
    if isinstance(error, exceptions.ClientAuthenticationError):
        # Entra refuses an identity with HTTP 400 or 404 too, which say something else of a blob.
        is_known = isinstance(converted, (AccessError, StoreUnavailableError))
        # The chain's message has a paragraph for each source; Entra's sentence has a number.
        said = _ENTRA.search(str(error.message or "")) or _LOGIN.search(str(error.message or ""))
        why = said[0] if said else ""
        return converted if converted is not None and is_known else no_credentials(AZURE, where, key, why)
    if converted is not None:
        return converted
    if isinstance(error, (exceptions.ServiceRequestError, exceptions.ServiceResponseError)):
        text = f"no answer: {type(error).__name__}"
        return unsendable(error, where) or StoreUnavailableError(text, where=where)
    return StoreUnavailableError(f"{type(error).__name__} of the SDK", where=where)


def _code(error: Any, status: int) -> str:
    """Return the service's error code from an SDK error."""
    code = getattr(error, "error_code", None) or ("BlobAlreadyExists" if status == 409 else status)
    return str(getattr(code, "value", code))


_BUSY = {408, 410, 429}
"""Statuses that pass; the metadata service answers 410 while it is updated."""


class _Exchange(threading.local):
    """Last token request of a thread: URL and response status."""

    url = ""
    status: int | None = None


class Identity:
    """Azure identity as an SDK credential: azure-identity's default chain."""

    def __init__(self) -> None:
        from azure.identity import DefaultAzureCredential

        # The SDK logs fifteen lines on missing identities: one error line is enough.
        logging.getLogger("azure.identity").setLevel(logging.ERROR)
        self._last = _Exchange()
        self._is_proven = False
        self._chain = DefaultAzureCredential(
            exclude_interactive_browser_credential=True,
            raw_request_hook=self._requested,
            raw_response_hook=self._answered,
        )

    def _requested(self, request: Any) -> None:
        self._last.url, self._last.status = request.http_request.url, None

    def _answered(self, response: Any) -> None:
        self._last.status = int(response.http_response.status_code)

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return an access token.

        Raises:
            ServiceRequestError: if the source of tokens does not answer, or is busy.
            ClientAuthenticationError: if it refuses, or there is none.
        """
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        self._last.url, self._last.status = "", None
        try:
            token = self._chain.get_token(*scopes, **options)
        except ClientAuthenticationError as error:
            if not self._may_pass():
                raise
            raise ServiceRequestError("the source of tokens does not answer") from error
        self._is_proven = True
        return token

    def exists(self, *scopes: str) -> bool:
        """Return whether the environment has an identity. Raise as `get_token` if one is refused.

        Without one no source of tokens answers, and none is named.
        """
        from azure.core.exceptions import ClientAuthenticationError

        try:
            self.get_token(*scopes)
        except ClientAuthenticationError:
            is_answered = self._last.status is not None and not _is_link_local(self._last.url)
            if is_answered or variable("AZURE_TOKEN_CREDENTIALS"):
                raise
            return False
        return True

    def _may_pass(self) -> bool:
        status = self._last.status
        if status is not None:
            return status >= 500 or status in _BUSY
        # Without a named identity, a machine outside Azure looks for a metadata service that does not exist.
        is_probe = not (self._is_proven or variable("AZURE_TOKEN_CREDENTIALS")) and _is_link_local(self._last.url)
        return bool(self._last.url) and not is_probe


def _is_link_local(url: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(urlsplit(url).hostname or "").is_link_local
    return False
