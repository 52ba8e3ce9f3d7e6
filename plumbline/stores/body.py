"""One HTTP response's body, read straight into the caller's buffer, never believed to have ended early."""

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
    """An `ObjectReader` over the urllib3 response that both SDKs stand on.

    It reads what has arrived, so that a trickle comes back here in time to be measured, and from the socket into the
    caller's buffer, without the copies that urllib3's own `read` makes of every piece.
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
        """Whether the body was read whole, so that its connection can serve again."""
        return not self._remaining and not self._skip and not self._tail

    def readinto(self, buffer: memoryview, /) -> int:
        """The next bytes, at most `len(buffer)`; 0 only at the end of what was asked for."""
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
    """Reads what has arrived of a body of known length into a buffer."""
    inner = raw._fp  # noqa: SLF001 - urllib3 has no readinto that does not copy
    if isinstance(inner, HTTPResponse) and not inner.chunked and isinstance(inner.fp, BufferedReader):
        return inner.fp.readinto1

    def copied(view: memoryview) -> int:
        chunk = raw.read1(len(view), decode_content=False)
        view[: len(chunk)] = chunk
        return len(chunk)

    return copied


def range_of(offset: int, length: int | None) -> str:
    """The range to ask for; nothing where the whole object is."""
    if length is not None:
        return f"bytes={offset}-{offset + length - 1}"
    return f"bytes={offset}-" if offset else ""


@contextmanager
def body_of(
    key: str, status: int, headers: Mapping[str, str], raw: Any, *, offset: int, length: int | None
) -> Iterator[HttpBody]:
    """The body of a GET that asked for `length` bytes from `offset`, whatever the server made of the range."""
    body = None
    try:
        body = _checked(key, status, headers, raw, offset=offset, length=length)
        yield body
    finally:
        if body is not None and body.at_end:
            # This response is over; its connection stays open, and may serve again.
            raw._fp.close()  # noqa: SLF001
            raw.release_conn()
        else:
            raw.close()


def _checked(
    key: str, status: int, headers: Mapping[str, str], raw: Any, *, offset: int, length: int | None
) -> HttpBody:
    etag = plain_etag(headers.get("etag", ""))
    try:
        told = int(headers["content-length"])
    except (KeyError, ValueError) as error:
        raise StoreUnavailableError("the answer tells no length") from error
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
        if match is None or int(match[1]) != offset or int(match[2]) - int(match[1]) + 1 != told:
            raise StoreUnavailableError("the answer is of another range than was asked for")
        total = int(match[3])
        if offset + told != _end(offset, length, total):
            raise StoreUnavailableError("the answer ends elsewhere than was asked for")
        return HttpBody(ObjectInfo(key, total, etag), raw, remaining=told)
    # The whole object where a range was asked: right bytes all the same, once the first ones are passed over.
    skip, end = min(offset, told), _end(offset, length, told)
    return HttpBody(ObjectInfo(key, told, etag), raw, remaining=max(0, end - offset), skip=skip, tail=told - end)


def _end(offset: int, length: int | None, total: int) -> int:
    return total if length is None else min(total, offset + length)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a Retry-After header asks for, if it gives a sane number of them."""
    value = headers.get("retry-after", headers.get("Retry-After", ""))
    return min(float(value), _LONGEST_WAIT_SECONDS) if re.fullmatch(r"\d{1,6}(\.\d+)?", value.strip()) else None
