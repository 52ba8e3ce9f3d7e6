"""Bodies of HTTP responses and of uploads.

The media type makes a browser show a page instead of downloading it. The MD5 makes the service refuse a body that was
damaged in transit; a bucket with Object Lock requires it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Protocol

from plumbline.data.stores.protocol import ObjectInfo, StoreUnavailableError, plain_etag
from plumbline.schema.errors import InvalidInputError, UnavailableError

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LONGEST_WAIT_SECONDS = 3600.0
_CHUNK_BYTES = 256 << 10


class HttpResponse(Protocol):
    """HTTP response with an unread body."""

    status: int

    def header(self, name: str) -> str:
        """Return a header's value, or ""."""

    def read1(self, size: int, /) -> bytes:
        """Return arrived bytes, at most `size`; `b""` at the end."""

    def release(self, *, at_end: bool) -> None:
        """Release the connection, for reuse if the body was read completely."""


class HttpBody:
    """Object reader over an HTTP response.

    A read returns the bytes that have arrived, so that a slow transfer can be measured.
    """

    def __init__(
        self, info: ObjectInfo, response: HttpResponse, *, remaining: int, skip: int = 0, tail: int = 0
    ) -> None:
        self.info = info
        self._response = response
        self._remaining = remaining
        self._skip = skip
        self._tail = tail

    @property
    def at_end(self) -> bool:
        """Return whether the whole body was read, so the connection is reusable."""
        return not self._remaining and not self._skip and not self._tail

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into `buffer`; return 0 only at the end."""
        while self._skip:
            self._skip -= len(self._next(self._skip))
        if not self._remaining:
            return 0
        chunk = self._next(min(len(buffer), self._remaining))
        buffer[: len(chunk)] = chunk
        self._remaining -= len(chunk)
        return len(chunk)

    def _next(self, size: int) -> bytes:
        try:
            chunk = self._response.read1(min(size, _CHUNK_BYTES))
        except (OSError, HTTPException, ValueError) as error:
            raise StoreUnavailableError(f"the transfer broke off: {type(error).__name__}") from error
        if not chunk:
            raise StoreUnavailableError(f"the body ended {self._remaining} bytes early")
        return chunk


def range_of(offset: int, length: int | None) -> str:
    """Return a request's Range header, "" for the whole object."""
    if length is not None:
        return f"bytes={offset}-{offset + length - 1}"
    return f"bytes={offset}-" if offset else ""


@contextmanager
def body_of(key: str, response: HttpResponse, *, offset: int, length: int | None) -> Iterator[HttpBody]:
    """Open a GET response's body, even if the server ignored the range."""
    body = None
    try:
        body = _checked(key, response, offset=offset, length=length)
        yield body
    finally:
        response.release(at_end=body is not None and body.at_end)


def _checked(key: str, response: HttpResponse, *, offset: int, length: int | None) -> HttpBody:
    etag = plain_etag(response.header("etag"))
    try:
        length_given = int(response.header("content-length"))
    except ValueError as error:
        raise StoreUnavailableError("the answer has no content length") from error
    kind = response.header("content-type").partition(";")[0].strip().lower()
    if kind == "text/html" and not media_type(key).startswith(kind):
        raise StoreUnavailableError("the answer is a web page: of a proxy, or of a sign-in, before the store")
    if response.status == 206:
        match = _CONTENT_RANGE.fullmatch(response.header("content-range"))
        if match is None or int(match[1]) != offset or int(match[2]) - int(match[1]) + 1 != length_given:
            raise StoreUnavailableError("the answer has a different range than requested")
        total = int(match[3])
        if offset + length_given != _end(offset, length, total):
            raise StoreUnavailableError("the answer ends at a different offset than requested")
        return HttpBody(ObjectInfo(key, total, etag), response, remaining=length_given)
    # The whole object instead of a range: skip the first bytes.
    skip, end = min(offset, length_given), _end(offset, length, length_given)
    return HttpBody(
        ObjectInfo(key, length_given, etag), response, remaining=max(0, end - offset), skip=skip,
        tail=length_given - end,
    )  # fmt: skip


def _end(offset: int, length: int | None, total: int) -> int:
    return total if length is None else min(total, offset + length)


def retry_after(value: str) -> float | None:
    """Parse a Retry-After header to seconds; `None` if absent or malformed."""
    return min(float(value), _LONGEST_WAIT_SECONDS) if re.fullmatch(r"\d{1,6}(\.\d+)?", value.strip()) else None


Body = BufferedReader | BytesIO

_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".xml": "application/xml",
}


@contextmanager
def opened(data: bytes | Path) -> Iterator[tuple[Body, int]]:
    """Open the data to upload; yield the body and its size.

    Errors of a local file inside the block become `InvalidInputError` if it does not exist, else `UnavailableError`.
    """
    if not isinstance(data, Path):
        yield BytesIO(data), len(data)
        return
    try:
        with data.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        if error.errno in _MISSING:
            raise InvalidInputError("no such file", where=str(data)) from error
        raise UnavailableError(f"the file cannot be read: {error.strerror}", where=str(data)) from error


def media_type(key: str) -> str:
    """Return an object's media type by file extension."""
    name = key.rpartition("/")[2]
    return _TYPES.get(name[name.rfind(".") :].lower() if "." in name else "", "application/octet-stream")


def content_md5(body: Body) -> str:
    """Return a body's Base64 MD5, and rewind the body."""
    body.seek(0)
    digest = hashlib.file_digest(body, lambda: hashlib.md5(usedforsecurity=False)).digest()
    body.seek(0)
    return base64.b64encode(digest).decode()
