"""Google Cloud Storage store, through its JSON API. See `google_api` for credentials.

An object's etag is its generation, Google's name of one version of its content, used for preconditions.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from plumbline.data.stores.body import Body, HttpBody, body_of, content_md5, media_type, opened, range_of
from plumbline.data.stores.google_api import GoogleApi, MediaResponse, signed_url
from plumbline.data.stores.opening import Timeouts
from plumbline.data.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    PreconditionFailedError,
    StoreUnavailableError,
    bounded_pages,
    checked_key,
    joined,
)
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.store_url import StoreAddress

_FIELDS = "name,size,generation"
_WHOLE_BYTES = 8 << 20
"""Maximum bytes of a single request; larger objects use a resumable session."""
_CHUNK_BYTES = 32 << 20
"""Bytes per chunk: a multiple of 256 KiB, as the service requires for every chunk except the last."""
_RESUME = 308


class GoogleStore:
    """Google Cloud Storage bucket as a store, below a prefix."""

    def __init__(
        self, url: str, bucket: str, prefix: str, *, connect_seconds: float = 5.0, read_seconds: float = 20.0
    ) -> None:
        self.url = url
        self._bucket = bucket
        self._prefix = prefix.strip("/")
        self._api = GoogleApi(url, connect_seconds=connect_seconds, read_seconds=read_seconds)
        self._sessions: dict[tuple[str, str, int], str] = {}
        """Upload sessions that broke off, by key, MD5 and size: the next attempt resumes them."""

    def _path(self, key: str) -> str:
        name = quote(joined(self._prefix, checked_key(key, self.url)), safe="")
        return f"/storage/v1/b/{quote(self._bucket, safe='')}/o/{name}"

    @contextmanager
    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> Iterator[HttpBody]:
        """Open an object for reading from `offset`."""
        # "gzip" returns the bytes as stored: otherwise the service unpacks compressed objects.
        headers = {"Accept-Encoding": "gzip"}
        if wanted := range_of(offset, length):
            headers["Range"] = wanted
        params = {"alt": "media"} | ({} if if_match is None else {"ifGenerationMatch": self._generation(key, if_match)})
        response = self._api.request(
            "GET", self._path(key), key=key, expected=(200, 206), params=params, headers=headers, stream=True
        )
        media = MediaResponse(response)
        if if_match is not None and media.header("etag") != if_match:
            media.release(at_end=False)
            raise PreconditionFailedError("the object has changed", where=self.url, key=key)
        with body_of(key, media, offset=offset, length=length) as reader:
            yield reader

    def _generation(self, key: str, etag: str) -> str:
        # The service accepts numbers only; a part in an old version's cache may have a different kind of etag.
        if not etag.isdecimal():
            raise PreconditionFailedError("the object has changed", where=self.url, key=key)
        return etag

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and generation."""
        return self._info(key, self._api.json("GET", self._path(key), key=key, params={"fields": _FIELDS}))

    def _info(self, key: str, metadata: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(key, int(metadata.get("size", 0)), str(int(metadata["generation"])))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`."""
        start = f"{self._prefix}/" if self._prefix else ""
        params = {"prefix": start + prefix, "fields": f"items({_FIELDS}),nextPageToken"}
        path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o"

        def read(token: str) -> tuple[Any, str]:
            page = self._api.json("GET", path, key="", params={**params, **({"pageToken": token} if token else {})})
            return page.get("items", []), page.get("nextPageToken", "")

        for page in bounded_pages(self.url, read):
            for entry in page:
                yield self._info(entry["name"][len(start) :], entry)

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object (generation 0), large ones by resumable upload."""
        checked_key(key, self.url)
        try:
            with opened(data) as (body, size):
                return self._upload(key, body, size, "0")
        except PreconditionFailedError as error:
            raise ObjectExistsError("exists already", where=self.url, key=key) from error

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object if its generation is `if_match`."""
        checked_key(key, self.url)
        generation = "0" if if_match is None else self._generation(key, if_match)
        return self._upload(key, io.BytesIO(data), len(data), generation)

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        self._api.request("DELETE", self._path(key), key=key, expected=(200, 204, 404))

    def presign(self, key: str, seconds: int) -> str:
        """Return a link to the object, valid for `seconds` without credentials."""
        self._api.connect()
        return signed_url(
            self._api.credentials, self._api.endpoint, self._bucket, joined(self._prefix, key), seconds, where=self.url
        )

    def _upload(self, key: str, body: Body, size: int, generation: str) -> ObjectInfo:
        name = joined(self._prefix, key)
        metadata = {"name": name, "contentType": media_type(key), "md5Hash": content_md5(body)}
        params = {"ifGenerationMatch": generation, "fields": _FIELDS}
        try:
            send = self._send_whole if size <= _WHOLE_BYTES else self._send_in_chunks
            return self._info(key, send(key, body, size, metadata, params))
        except ObjectMissingError as error:
            raise BucketMissingError("no such bucket", where=self.url, hint="create the bucket first") from error

    def _upload_path(self) -> str:
        return f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"

    def _send_whole(
        self, key: str, body: Body, _: int, metadata: Mapping[str, str], params: Mapping[str, str]
    ) -> dict[str, Any]:
        boundary = secrets.token_hex(16)
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        head += f"--{boundary}\r\nContent-Type: {metadata['contentType']}\r\n\r\n"
        whole = head.encode() + body.read() + f"\r\n--{boundary}--\r\n".encode()
        answer: dict[str, Any] = self._api.json(
            "POST", self._upload_path(), key=key, params={**params, "uploadType": "multipart"},
            headers={"Content-Type": f"multipart/related; boundary={boundary}"}, data=io.BytesIO(whole),
        )  # fmt: skip
        return answer

    def _send_in_chunks(
        self, key: str, body: Body, size: int, metadata: Mapping[str, str], params: Mapping[str, str]
    ) -> dict[str, Any]:
        """Upload a body in resumable chunks, continuing after interruptions."""
        mark = (key, f"{metadata['md5Hash']}/{params['ifGenerationMatch']}", size)
        session = self._sessions.get(mark)
        try:
            if session is None:
                session = self._sessions[mark] = self._begin_session(key, size, metadata, params)
                response, position = None, 0
            else:
                response, position = self._put_chunk(key, session, b"", f"bytes */{size}", 0)
            while response is None:
                body.seek(position)
                chunk = body.read(_CHUNK_BYTES)
                if not chunk:
                    raise ConfigurationError("the file became shorter while it was read", where=self.url, key=key)
                span = f"bytes {position}-{position + len(chunk) - 1}/{size}"
                response, position = self._put_chunk(key, session, chunk, span, position)
        except StoreUnavailableError:
            raise
        except PlumblineError:
            self._sessions.pop(mark, None)
            raise
        self._sessions.pop(mark, None)
        return response

    def _begin_session(self, key: str, size: int, metadata: Mapping[str, str], params: Mapping[str, str]) -> str:
        response = self._api.request(
            "POST", self._upload_path(), key=key, params={**params, "uploadType": "resumable"},
            headers={"X-Upload-Content-Type": metadata["contentType"], "X-Upload-Content-Length": str(size)},
            json=dict(metadata),
        )  # fmt: skip
        session = str(response.headers.get("Location", ""))
        ours, theirs = urlsplit(self._api.endpoint), urlsplit(session)
        # Later requests contain the access token.
        if (ours.scheme, ours.netloc) != (theirs.scheme, theirs.netloc):
            text = f"the upload session is on a different host, {theirs.netloc!r}"
            raise ConfigurationError(text, where=self.url, key=key, hint="check PLUMBLINE_GS_ENDPOINT")
        return session

    def _put_chunk(
        self, key: str, session: str, chunk: bytes, span: str, position: int
    ) -> tuple[dict[str, Any] | None, int]:
        """Send a chunk (or an empty status query). Return the complete object, or the bytes received."""
        try:
            response = self._api.request(
                "PUT", session, key=key, expected=(200, 201, _RESUME), headers={"Content-Range": span},
                data=io.BytesIO(chunk) if chunk else b"",
            )  # fmt: skip
        except ObjectMissingError as error:
            # Sessions end after a week, or are lost: the next attempt starts again.
            self._sessions = {mark: other for mark, other in self._sessions.items() if other != session}
            raise StoreUnavailableError("the upload session has ended", where=self.url) from error
        if response.status_code != _RESUME:
            return self._api.document(response), position
        kept = response.headers.get("Range", "")
        reached = int(kept.rpartition("-")[2]) + 1 if kept.rpartition("-")[2].isdecimal() else 0
        if chunk and reached <= position:
            raise StoreUnavailableError("the service kept no byte of a chunk", where=self.url)
        return None, reached


def open_url(url: str, address: StoreAddress, waits: Timeouts) -> GoogleStore:
    """Open the store at a `gs://` URL."""
    connect, read = waits.connect_seconds, waits.read_seconds
    return GoogleStore(url, address.bucket, address.prefix, connect_seconds=connect, read_seconds=read)
