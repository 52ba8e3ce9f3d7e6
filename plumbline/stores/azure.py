"""Azure Blob Storage, through plain azure-storage-blob.

Reading goes through the SDK's own authenticated pipeline, but takes the body from the socket: the SDK's
`download_blob` asks for 32 MiB, then for 4 MiB at a time, and copies each piece several times.

Where the account is and what opens it: `AZURE_STORAGE_CONNECTION_STRING` if it names the same account; else
`PLUMBLINE_AZURE_ENDPOINT` (`{account}` is filled in) or the public cloud's address, with `AZURE_STORAGE_KEY`,
`AZURE_STORAGE_SAS_TOKEN` or azure-identity's `DefaultAzureCredential`.

Accounts with versions, soft delete, immutability policies or a hierarchical namespace: a folder of such a namespace is
no object; what a policy protects is never replaced, and is said to be protected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from plumbline.errors import AccessError, ConfigurationError, PlumblineError
from plumbline.stores.azure_signing import IdentityToken, shared_key
from plumbline.stores.base import (
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
)
from plumbline.stores.body import HttpBody, body_of, range_of, retry_after
from plumbline.stores.direct import DirectReads, is_proxied
from plumbline.stores.keys import checked_key, joined, plain_etag, quoted_etag
from plumbline.stores.upload import media_type

__all__ = ["AzureStore"]

_HINT = "check the credentials of this environment: AZURE_STORAGE_* variables or identity"
_PROTECTED_HINT = (
    "an immutability policy or a legal hold protects the object: keep replaceable objects in a different container"
)
_CONFLICT_HINT = "a folder or a different kind of blob has this name, or the account does not allow this operation"
_EXISTS = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "PathAlreadyExists", "409"}
_PROTECTED = {"BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold", "ContainerImmutableDueToPolicy"}
_PASSING = {
    "AccountBeingCreated", "ContainerBeingDeleted", "ContainerDisabled", "OperationTimedOut", "ServerBusy",
    "PendingCopyOperation", "BlobBeingRehydrated",
}  # fmt: skip
_FOLDER = "hdi_isfolder"
"""The metadata that marks a folder of a hierarchical namespace, which the Blob API shows as an empty blob."""
_CLOCK_SLACK = timedelta(minutes=5)
_BLOCK_BYTES = 16 << 20
_WHOLE_BYTES = 1 << 20
"""Maximum bytes of a single upload. The SDK passes it to the socket at once, with one timeout for all of it; a block is
read like a file, with a timeout per few kilobytes."""
_POOL = 64


class _ProtectedError(ConfigurationError):
    """Error: a policy protects the object."""


class _SignedReads:
    """Reads of one container, signed here; faster than the SDK for small objects."""

    def __init__(self, pool: DirectReads, root: str, account: str, key: str | None, credential: Any) -> None:
        self._pool = pool
        self._root = root
        self._account = account
        self._key = key
        self._token = IdentityToken(credential)

    def get(self, name: str, headers: Mapping[str, str], *, where: str) -> Any:
        target = f"{self._root}/{quote(name, safe='/~')}"
        headers = {**headers, "x-ms-date": formatdate(usegmt=True)}
        if self._key is None:
            headers["Authorization"] = self._token.header()
        else:
            headers["Authorization"] = shared_key(self._account, self._key, target, headers)
        return self._pool.get(target, headers, where=where)


class AzureStore:
    """Store of one container, below a prefix."""

    def __init__(
        self, url: str, account: str, container: str, prefix: str, *, connect_seconds: float, read_seconds: float
    ) -> None:
        self.url = url
        self._account = account
        self._container = container
        self._prefix = prefix.strip("/")
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._made: Any = None
        self._reads: _SignedReads | None = None

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._make_client()
                self._reads = self._make_reads(self._made)
            return self._made

    def _make_reads(self, client: Any) -> _SignedReads | None:
        """Return signed reads; `None` behind a proxy or with a SAS token."""
        parts = urlsplit(client.url)
        key = getattr(client.credential, "account_key", None)
        if (key is None and not hasattr(client.credential, "get_token")) or is_proxied(client.url):
            return None
        connect, read = self._timeouts
        pool = DirectReads(f"{parts.scheme}://{parts.netloc}", connect_seconds=connect, read_seconds=read)
        return _SignedReads(pool, parts.path, client.account_name, key, client.credential)

    def _make_client(self) -> Any:
        import requests
        from azure.core.pipeline.transport import RequestsTransport
        from azure.storage.blob import ContainerClient
        from requests.adapters import HTTPAdapter

        # A separate session: the transport's default pool of 10 drops connections if more threads read.
        session = requests.Session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=_POOL))
        options: dict[str, Any] = {
            "transport": RequestsTransport(
                session=session, session_owner=False,
                connection_timeout=self._timeouts[0], read_timeout=self._timeouts[1],
            ),
            "retry_total": 0,
            "permit_redirects": False,
            "max_block_size": _BLOCK_BYTES,
            "max_single_put_size": _WHOLE_BYTES,
        }  # fmt: skip
        text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
        try:
            if f"AccountName={self._account};" in f"{text};":
                return ContainerClient.from_connection_string(text, self._container, **options)
            return ContainerClient(self._endpoint(), self._container, credential=_credential(self._account), **options)
        except ValueError as error:
            what = "the Blob client cannot be made from this environment"
            raise ConfigurationError(what, where=self.url, hint=_HINT) from error

    def _endpoint(self) -> str:
        pattern = os.environ.get("PLUMBLINE_AZURE_ENDPOINT", "https://{account}.blob.core.windows.net")
        return pattern.replace("{account}", self._account)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        from azure.core import exceptions

        try:
            yield
        except exceptions.ClientAuthenticationError as error:
            # Without a response, the SDK found no credentials.
            text = "no usable credentials" if error.response is None else f"refused: {_code(error)}"
            raise AccessError(text, where=self.url, key=key, hint=_HINT) from error
        except exceptions.HttpResponseError as error:
            headers: Mapping[str, str] = getattr(error.response, "headers", {})
            raise self._refused(error.status_code or 0, _code(error), headers, key) from error
        except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
            raise StoreUnavailableError(f"no answer: {type(error).__name__}", where=self.url) from error
        except exceptions.AzureError as error:
            raise StoreUnavailableError(f"{type(error).__name__} of the SDK", where=self.url) from error

    def _refused(self, status: int, code: str, headers: Mapping[str, str], key: str) -> PlumblineError:
        if status in (412, 304):
            return PreconditionFailedError("the object has changed", where=self.url, key=key)
        if status == 409 and code not in _PASSING:
            return self._conflict(code, key)
        if status == 404:
            text = "no such container" if code == "ContainerNotFound" else "no such object"
            return ObjectMissingError(text, where=self.url, key=key)
        if status in (401, 403):
            return AccessError(f"refused: HTTP {status} {code}", where=self.url, key=key, hint=_HINT)
        if status >= 500 or status in (0, 408, 409, 429):
            wait = retry_after(headers)
            return StoreUnavailableError(f"HTTP {status} {code}", where=self.url, retry_after_seconds=wait)
        hint = "check the account's endpoint" if 300 <= status < 400 else ""
        return ConfigurationError(f"HTTP {status} {code}", where=self.url, key=key, hint=hint)

    def _conflict(self, code: str, key: str) -> PlumblineError:
        if code in _EXISTS:
            return ObjectExistsError("exists already", where=self.url, key=key)
        if code in _PROTECTED:
            return _ProtectedError(f"refused: HTTP 409 {code}", where=self.url, key=key, hint=_PROTECTED_HINT)
        return ConfigurationError(f"HTTP 409 {code}", where=self.url, key=key, hint=_CONFLICT_HINT)

    def _blob(self, key: str) -> Any:
        return self._client.get_blob_client(joined(self._prefix, checked_key(key, self.url)))

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[HttpBody]:
        """Read from `offset`."""
        headers = {"Range": wanted} if (wanted := range_of(offset, length)) else {}
        if if_match is not None:
            headers["If-Match"] = quoted_etag(if_match)
        status, response_headers, raw = self._get(key, headers)
        with body_of(key, status, response_headers, raw, offset=offset, length=length) as reader:
            yield reader

    def _get(self, key: str, headers: dict[str, str]) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers and unread body of a GET."""
        from azure.core.pipeline.transport import HttpRequest

        name, client = joined(self._prefix, checked_key(key, self.url)), self._client
        headers |= {"Accept": "application/octet-stream", "x-ms-version": client.api_version}
        with self._errors(key):
            if self._reads is not None:
                raw = self._reads.get(name, headers, where=self.url)
                status, response_headers = raw.status, _lower(raw.headers)
            else:
                blob = client.get_blob_client(name)
                request = HttpRequest("GET", blob.url, headers=headers)
                # The pipeline signs and sends; the public `download_blob` would copy the body.
                answer = blob._pipeline.run(request, stream=True).http_response  # noqa: SLF001
                status, response_headers, raw = answer.status_code, _lower(answer.headers), answer.internal_response.raw
        if status not in (200, 206):
            raw.close()
            raise self._refused(status, response_headers.get("x-ms-error-code", ""), response_headers, key)
        return status, response_headers, raw

    def stat(self, key: str) -> ObjectInfo:
        """Return size and etag."""
        blob = self._blob(key)
        with self._errors(key):
            properties = blob.get_blob_properties()
        if _is_folder(properties):
            raise ObjectMissingError("no such object", where=self.url, key=key)
        return ObjectInfo(key, int(properties.size), plain_etag(properties.etag))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        start = f"{self._prefix}/" if self._prefix else ""
        with self._errors(""):
            for entry in self._client.list_blobs(name_starts_with=start + prefix, include=["metadata"]):
                if not _is_folder(entry):
                    yield ObjectInfo(entry.name[len(start) :], int(entry.size), plain_etag(entry.etag))

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object atomically; large objects in blocks."""
        try:
            if not isinstance(data, Path):
                return self._upload(key, data, len(data), overwrite=False)
            with data.open("rb") as file:
                return self._upload(key, file, data.stat().st_size, overwrite=False)
        except _ProtectedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def delete(self, key: str) -> None:
        """Remove an object, if it exists; versions and soft-deleted copies remain."""
        with contextlib.suppress(ObjectMissingError), self._errors(key):
            self._blob(key).delete_blob()

    def presign(self, key: str, seconds: int) -> str:
        """Return a link to the object, valid for `seconds` without credentials.

        Signed with the account's key, or with a key that the service gives to an identity (user delegation).

        Raises:
            AccessError: if there is neither, as with a SAS token.
        """
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        blob, now = self._blob(key), datetime.now(UTC)
        until = now + timedelta(seconds=seconds)
        signing: dict[str, Any] = {"account_key": getattr(blob.credential, "account_key", None)}
        if signing["account_key"] is None:
            if not hasattr(blob.credential, "get_token"):
                raise AccessError("a SAS token cannot sign a link", where=self.url, hint=_HINT)
            from azure.storage.blob import BlobServiceClient

            service = BlobServiceClient(self._endpoint(), credential=blob.credential)
            with self._errors(key):
                signing = {"user_delegation_key": service.get_user_delegation_key(now - _CLOCK_SLACK, until)}
        sas = generate_blob_sas(
            blob.account_name, blob.container_name, blob.blob_name, permission=BlobSasPermissions(read=True),
            start=now - _CLOCK_SLACK, expiry=until, **signing,
        )  # fmt: skip
        return f"{blob.url.partition('?')[0]}?{sas}"

    def _upload(self, key: str, data: bytes | IO[bytes], size: int, **options: Any) -> ObjectInfo:
        from azure.storage.blob import ContentSettings

        blob, content = self._blob(key), ContentSettings(content_type=media_type(key))
        with self._errors(key):
            answer = blob.upload_blob(data, length=size, content_settings=content, **options)
        return ObjectInfo(key, size, plain_etag(answer["etag"]))

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match`."""
        from azure.core import MatchConditions

        if if_match is None:
            options: dict[str, Any] = {"overwrite": False}
        else:
            condition = {"etag": quoted_etag(if_match), "match_condition": MatchConditions.IfNotModified}
            options = {"overwrite": True, **condition}
        try:
            return self._upload(key, bytes(data), len(data), **options)
        except (ObjectExistsError, ObjectMissingError) as error:
            if if_match is None and isinstance(error, ObjectMissingError):
                raise ObjectMissingError(
                    "no such container", where=self.url, hint="create the container first"
                ) from error
            raise PreconditionFailedError("the object has changed", where=self.url, key=key) from error


def _credential(account: str) -> Any:
    if key := os.environ.get("AZURE_STORAGE_KEY"):
        return {"account_name": account, "account_key": key}
    if token := os.environ.get("AZURE_STORAGE_SAS_TOKEN"):
        from azure.core.credentials import AzureSasCredential

        return AzureSasCredential(token)
    from azure.identity import DefaultAzureCredential

    # The SDK logs fifteen lines on missing identities: one error line is enough.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    return DefaultAzureCredential(exclude_interactive_browser_credential=True)


def _code(error: Any) -> str:
    """Return the service's error code; its message may contain a signature."""
    code = getattr(error, "error_code", None) or getattr(error, "status_code", None) or type(error).__name__
    return str(getattr(code, "value", code))


def _is_folder(properties: Any) -> bool:
    """Return whether a blob is a folder of a hierarchical namespace."""
    return str((properties.metadata or {}).get(_FOLDER, "")).lower() == "true"


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
