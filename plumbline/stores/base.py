"""The Store: the small Protocol behind which every cloud's object store stands.

All keys are relative to the store's URL, with forward slashes. Every backend raises the same errors, and retries
nothing by itself: `plumbline.stores.retry` does that above all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plumbline.errors import InvalidInputError, PlumblineError, UnavailableError

__all__ = [
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectReader",
    "PreconditionFailedError",
    "Store",
    "StoreUnavailableError",
]


class ObjectMissingError(InvalidInputError):
    """There is no such object (or no such bucket); trying again will not help."""


class ObjectExistsError(PlumblineError):
    """`create` met an object of the same key."""


class PreconditionFailedError(PlumblineError):
    """The object is no longer the one that was read: another writer, or a change between two ranges."""


class StoreUnavailableError(UnavailableError):
    """A passing failure: refused, reset, truncated, throttled, too slow. It may be tried again."""

    def __init__(self, what: str, *, where: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(what, where=where)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as the store describes it; `etag` changes whenever the bytes may have."""

    key: str
    size: int
    etag: str


class ObjectReader(Protocol):
    """The bytes that were asked for of one object, in order. A short body is an error, never an end."""

    info: ObjectInfo

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill `buffer` from its start; the number of bytes written, 0 only at the end of what was asked for."""


class Store(Protocol):
    """An object store, from one URL down."""

    url: str

    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> AbstractContextManager[ObjectReader]:
        """Read from `offset`, to the object's end or at most `length` bytes (one or more).

        With `if_match`, only while the object's etag is still that one.
        """

    def stat(self, key: str) -> ObjectInfo:
        """What the store says of one object; `ObjectMissingError` if there is none."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in the order of their keys."""

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object, all or nothing; `ObjectExistsError` if there is one. Large files go in parts."""

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object whose etag is `if_match` (`None`: there is none yet); else `PreconditionFailedError`."""

    def delete(self, key: str) -> None:
        """Remove an object; one that does not exist is removed already."""
