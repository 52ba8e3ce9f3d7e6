"""Azure Blob Storage, through plain azure-storage-blob.

Reads are GETs over kept connections: the SDK's `download_blob` asks for 32 MiB, then for 4 MiB at a time, and copies
each piece several times.

Accounts with versions, soft delete, immutability policies or a hierarchical namespace: a folder of such a namespace is
not an object; a protected object is never replaced, and the error names the protection.
"""

from __future__ import annotations

import binascii
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from plumbline.data.stores.azure_access import AzureAccess, ReadAuthorization, find_access, sdk_error
from plumbline.data.stores.body import HttpBody, body_of, media_type, opened, range_of
from plumbline.data.stores.direct import DirectReads, DirectResponse
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    bounded_pages,
    checked_key,
    joined,
    plain_etag,
    quoted_etag,
)
from plumbline.data.stores.service_errors import AZURE, Answer, ProtectedError, no_credentials, response_error
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError
from plumbline.schema.store_url import StoreAddress

_HINT = "check AZURE_STORAGE_CONNECTION_STRING and PLUMBLINE_AZURE_ENDPOINT"
_LINK_HINT = "signing needs the account's key or an identity"
_FOLDER = "hdi_isfolder"
"""The metadata that marks a folder of a hierarchical namespace, which the Blob API shows as an empty blob."""
_CLOCK_SLACK = timedelta(minutes=5)
_BLOCK_BYTES = 16 << 20
_WHOLE_BYTES = 1 << 20
"""Maximum bytes of a single upload. The SDK passes it to the socket at once, with one timeout for all of it; a block is
read like a file, with a timeout per few kilobytes."""
_POOL = 64


@dataclass(frozen=True, slots=True)
class _Connected:
    """Connected client of one container, with a pool of connections."""

    client: Any
    access: AzureAccess
    authorization: ReadAuthorization
    pool: DirectReads
    root: str


class AzureStore:
    """Azure Blob container as a store, below a prefix."""

    def __init__(
        self, url: str, account: str, container: str, prefix: str, *, connect_seconds: float, read_seconds: float
    ) -> None:
        self.url = url
        self._account = account
        self._container = container
        self._prefix = prefix.strip("/")
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._made: _Connected | None = None

    @property
    def _client(self) -> Any:
        return self._connected().client

    def _connected(self) -> _Connected:
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            return self._made

    def _connect(self) -> _Connected:
        connect, read = self._timeouts
        try:
            with self._errors(""):
                access = find_access(self._account)
            client = self._make_client(access)
        except ValueError as error:
            what = "the Blob client cannot be made from this environment"
            raise ConfigurationError(what, where=self.url, hint=_HINT) from error
        parts = urlsplit(client.url)
        pool = DirectReads(f"{parts.scheme}://{parts.netloc}", connect_seconds=connect, read_seconds=read)
        return _Connected(client, access, ReadAuthorization(access, self._container), pool, parts.path)

    def _make_client(self, access: AzureAccess) -> Any:
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
        if access.connection_string:
            return ContainerClient.from_connection_string(access.connection_string, self._container, **options)
        return ContainerClient(access.endpoint, self._container, credential=access.credential, **options)

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except PlumblineError:
            raise
        except binascii.Error as error:
            # Signing decodes the account's key.
            raise no_credentials(AZURE, self.url, key) from error
        except Exception as error:
            if isinstance(error, ValueError) and self._made is None:
                raise
            raise sdk_error(error, self.url, key, self._made.access if self._made else None) from error

    def _blob(self, key: str) -> Any:
        return self._client.get_blob_client(joined(self._prefix, checked_key(key, self.url)))

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[HttpBody]:
        """Open an object for reading from `offset`."""
        headers = {"Range": wanted} if (wanted := range_of(offset, length)) else {}
        if if_match is not None:
            headers["If-Match"] = quoted_etag(if_match)
        with body_of(key, self._get(key, headers), offset=offset, length=length) as reader:
            yield reader

    def _get(self, key: str, headers: dict[str, str]) -> DirectResponse:
        """Send a GET, and return the response."""
        name, connected = joined(self._prefix, checked_key(key, self.url)), self._connected()
        with self._errors(key):
            target, more = connected.authorization.apply(f"{connected.root}/{quote(name, safe='/~')}")
        headers = {**headers, **more, "x-ms-version": connected.client.api_version}
        response = connected.pool.get(target, headers, where=self.url)
        if response.status not in (200, 206):
            message, detail = response.error_fields("Message", "AuthenticationErrorDetail")
            code, retry = response.header("x-ms-error-code"), response.header("retry-after")
            answer = Answer(response.status, code, retry, connected.access.remark or detail or message)
            raise response_error(AZURE, answer, self.url, key, is_anonymous=connected.access.is_anonymous)
        return response

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and etag."""
        blob = self._blob(key)
        try:
            with self._errors(key):
                properties = blob.get_blob_properties()
        except AccessError:
            # A response to HEAD has no body: GET names the reason.
            with self.open(key):
                raise
        if _is_folder(properties):
            raise ObjectMissingError("no such object", where=self.url, key=key)
        return ObjectInfo(key, int(properties.size), plain_etag(properties.etag))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        start = f"{self._prefix}/" if self._prefix else ""
        with self._errors(""):
            pages = self._client.list_blobs(name_starts_with=start + prefix, include=["metadata"]).by_page()

            def read(_: str) -> tuple[Any, str]:
                page = list(next(pages, ()))
                return page, pages.continuation_token or ""

            for page in bounded_pages(self.url, read):
                for entry in page:
                    if not _is_folder(entry):
                        yield ObjectInfo(entry.name[len(start) :], int(entry.size), plain_etag(entry.etag))

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object atomically, large ones in blocks."""
        try:
            with opened(data) as (body, size):
                return self._upload(key, body, size, overwrite=False)
        except ProtectedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def delete(self, key: str) -> None:
        """Delete an object, if it exists; versions and soft-deleted copies remain."""
        with contextlib.suppress(ObjectMissingError), self._errors(key):
            self._blob(key).delete_blob()

    def presign(self, key: str, seconds: int) -> str:
        """Return a link to the object, valid for `seconds` without credentials.

        Signed with the account's key, or with a key that the service gives to an identity (user delegation).

        Raises:
            AccessError: if there is neither, as with a SAS token.
        """
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        blob, access, now = self._blob(key), self._connected().access, datetime.now(timezone.utc)
        until = now + timedelta(seconds=seconds)
        signing: dict[str, Any] = {"account_key": access.key}
        if not access.key:
            if access.identity is None:
                way = "no credentials" if access.is_anonymous else "a SAS token"
                raise AccessError(f"{way} cannot sign a link", where=self.url, hint=_LINK_HINT)
            from azure.storage.blob import BlobServiceClient

            service = BlobServiceClient(access.endpoint, credential=access.identity)
            with self._errors(key):
                signing = {"user_delegation_key": service.get_user_delegation_key(now - _CLOCK_SLACK, until)}
        with self._errors(key):
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
        """Replace the object if its etag is `if_match`."""
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
                raise BucketMissingError(
                    "no such container", where=self.url, hint="create the container first"
                ) from error
            raise PreconditionFailedError("the object has changed", where=self.url, key=key) from error


def _is_folder(properties: Any) -> bool:
    """Return whether a blob represents a folder (hierarchical namespace)."""
    return str((properties.metadata or {}).get(_FOLDER, "")).lower() == "true"


def open_url(url: str, address: StoreAddress, waits: Timeouts) -> AzureStore:
    """Open the store at an `az://` URL."""
    connect, read = waits.connect_seconds, waits.read_seconds
    return AzureStore(
        url, address.bucket, address.container, address.prefix, connect_seconds=connect, read_seconds=read
    )
