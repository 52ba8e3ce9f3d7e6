"""One HTTP response's body, read straight into the caller's buffer, never believed to have ended early."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from plumbline.stores.base import ObjectInfo, StoreUnavailableError
from plumbline.stores.keys import plain_etag

__all__ = ["HttpBody", "body_of", "retry_after"]

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_LONGEST_WAIT_SECONDS = 3600.0


class RawResponse(Protocol):
    """The part of `urllib3.HTTPResponse` that is used here."""

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """What one read of the socket gives, at most `amt` bytes."""


class HttpBody:
    """An `ObjectReader` over the urllib3 response that both SDKs stand on.

    `read1` returns what has arrived, so that a trickle comes back here in time to be measured.
    """

    def __init__(self, info: ObjectInfo, raw: RawResponse, *, remaining: int, skip: int = 0) -> None:
        self.info = info
        self._raw = raw
        self._remaining = remaining
        self._skip = skip

    @property
    def at_end(self) -> bool:
        """Whether the body was read whole, so that its connection can serve again."""
        return not self._remaining and not self._skip

    def readinto(self, buffer: memoryview, /) -> int:
        """The next bytes, at most `len(buffer)`; 0 only at the object's end."""
        while self._skip:
            self._skip -= len(self._next(min(self._skip, 1 << 20)))
        if not self._remaining:
            return 0
        chunk = self._next(min(len(buffer), self._remaining))
        buffer[: len(chunk)] = chunk
        self._remaining -= len(chunk)
        return len(chunk)

    def _next(self, size: int) -> bytes:
        chunk = _guarded_read(self._raw, size)
        if not chunk:
            raise StoreUnavailableError(f"the body ended {self._remaining} bytes early")
        return chunk


def _guarded_read(raw: RawResponse, size: int) -> bytes:
    from urllib3.exceptions import HTTPError

    try:
        return raw.read1(size, decode_content=False)
    except (HTTPError, OSError) as error:
        raise StoreUnavailableError(f"the transfer broke off: {type(error).__name__}") from error


def body_of(key: str, status: int, headers: Mapping[str, str], raw: Any, offset: int) -> HttpBody:
    """The body of a GET that asked for everything from `offset`, whatever the server made of the range."""
    etag = plain_etag(headers.get("etag", ""))
    try:
        length = int(headers["content-length"])
    except (KeyError, ValueError) as error:
        raise StoreUnavailableError("the answer tells no length") from error
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None or int(match[1]) != offset or int(match[2]) - int(match[1]) + 1 != length:
            raise StoreUnavailableError("the answer is of another range than was asked for")
        total = int(match[3])
        if offset + length != total:
            raise StoreUnavailableError("the answer ends before the object does")
        return HttpBody(ObjectInfo(key, total, etag), raw, remaining=length)
    # The whole object where a range was asked: right bytes all the same, once the first ones are passed over.
    return HttpBody(ObjectInfo(key, length, etag), raw, remaining=max(0, length - offset), skip=min(offset, length))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a Retry-After header asks for, if it gives a sane number of them."""
    value = headers.get("retry-after", headers.get("Retry-After", ""))
    return min(float(value), _LONGEST_WAIT_SECONDS) if re.fullmatch(r"\d{1,6}(\.\d+)?", value.strip()) else None
