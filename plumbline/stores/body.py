"""Body of an HTTP response, read directly into the caller's buffer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from io import BufferedReader
from typing import Any

from urllib3.exceptions import HTTPError

from plumbline.stores.base import ObjectInfo, StoreUnavailableError
from plumbline.stores.keys import plain_etag

__all__ = ["HttpBody", "body_of", "range_of", "retry_after"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LONGEST_WAIT_SECONDS = 3600.0


class HttpBody:
    """`ObjectReader` on the urllib3 response of both SDKs.

    The reader returns the bytes that have arrived, so that a slow transfer can be measured, and reads from the socket
    into the caller's buffer, without urllib3's copies.
    """

    def __init__(self, info: ObjectInfo, raw: Any, *, remaining: int, skip: int = 0, tail: int = 0) -> None:
        self.info = info
        self._raw = raw
        self._remaining = remaining
        self._skip = skip
        self._tail = tail
        self._read = _reader_of(raw)

    @property
    def at_end(self) -> bool:
        """Return whether the whole body was read, so that the connection is reusable."""
        return not self._remaining and not self._skip and not self._tail

    def readinto(self, buffer: memoryview, /) -> int:
        """Read the next bytes into `buffer`; return 0 only at the end."""
        while self._skip:
            self._skip -= self._next(buffer[: self._skip])
        if not self._remaining:
            return 0
        size = self._next(buffer[: self._remaining])
        self._remaining -= size
        return size

    def _next(self, view: memoryview) -> int:
        try:
            size = self._read(view)
        except (HTTPError, OSError, ValueError) as error:
            raise StoreUnavailableError(f"the transfer broke off: {type(error).__name__}") from error
        if not size:
            raise StoreUnavailableError(f"the body ended {self._remaining} bytes early")
        return size


def _reader_of(raw: Any) -> Callable[[memoryview], int]:
    """Return a function that reads a body's arrived bytes."""
    inner = raw._fp  # noqa: SLF001 - urllib3 has no readinto that does not copy
    if isinstance(inner, HTTPResponse) and not inner.chunked and isinstance(inner.fp, BufferedReader):
        return inner.fp.readinto1

    def copied(view: memoryview) -> int:
        chunk = raw.read1(len(view), decode_content=False)
        view[: len(chunk)] = chunk
        return len(chunk)

    return copied


def range_of(offset: int, length: int | None) -> str:
    """Return the Range header of a request; "" for the whole object."""
    if length is not None:
        return f"bytes={offset}-{offset + length - 1}"
    return f"bytes={offset}-" if offset else ""


@contextmanager
def body_of(
    key: str, status: int, headers: Mapping[str, str], raw: Any, *, offset: int, length: int | None
) -> Iterator[HttpBody]:
    """Open the body of a GET, whether the server honoured the range or not."""
    body = None
    try:
        body = _checked(key, status, headers, raw, offset=offset, length=length)
        yield body
    finally:
        if body is not None and body.at_end:
            # The response is complete; its connection stays open for reuse.
            raw._fp.close()  # noqa: SLF001
            raw.release_conn()
        else:
            raw.close()


def _checked(
    key: str, status: int, headers: Mapping[str, str], raw: Any, *, offset: int, length: int | None
) -> HttpBody:
    etag = plain_etag(headers.get("etag", ""))
    try:
        length_given = int(headers["content-length"])
    except (KeyError, ValueError) as error:
        raise StoreUnavailableError("the answer has no content length") from error
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None or int(match[1]) != offset or int(match[2]) - int(match[1]) + 1 != length_given:
            raise StoreUnavailableError("the answer has a different range than requested")
        total = int(match[3])
        if offset + length_given != _end(offset, length, total):
            raise StoreUnavailableError("the answer ends at a different offset than requested")
        return HttpBody(ObjectInfo(key, total, etag), raw, remaining=length_given)
    # The whole object instead of a range: skip the first bytes.
    skip, end = min(offset, length_given), _end(offset, length, length_given)
    return HttpBody(
        ObjectInfo(key, length_given, etag), raw, remaining=max(0, end - offset), skip=skip, tail=length_given - end
    )


def _end(offset: int, length: int | None, total: int) -> int:
    return total if length is None else min(total, offset + length)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header; `None` if absent or malformed."""
    value = headers.get("retry-after", headers.get("Retry-After", ""))
    return min(float(value), _LONGEST_WAIT_SECONDS) if re.fullmatch(r"\d{1,6}(\.\d+)?", value.strip()) else None
