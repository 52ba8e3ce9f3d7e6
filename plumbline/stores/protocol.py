"""Store: the interface of every object store, and the form of its keys and etags.

All keys are relative to the store's URL, with forward slashes. Every backend raises the same errors, and never retries:
`plumbline.stores.retry` does that for all of them. No error of an SDK or of the system leaves a backend: callers treat
a `PlumblineError` as one store's failure, and anything else would end the round of every platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from plumbline.errors import ExitCode, InvalidInputError, PlumblineError, UnavailableError
from plumbline.schema.store_url import safe_key


class ObjectMissingError(InvalidInputError):
    """Error: the object or bucket does not exist; a retry will not help."""


class BucketMissingError(ObjectMissingError):
    """Error: the bucket or container does not exist."""


class FolderMissingError(ObjectMissingError, UnavailableError):
    """Error: the store's folder does not exist yet, or its file system is not mounted.

    A writer creates the folder, so that for it the object is merely missing; a training that needs the object has met
    a failure of infrastructure.
    """

    exit_code = ExitCode.INCONCLUSIVE


class ObjectExistsError(PlumblineError):
    """Error: `create` found an object of the same key."""


class PreconditionFailedError(UnavailableError):
    """Error: the object has changed since it was read; a new attempt reads the new object."""


class StoreUnavailableError(UnavailableError):
    """Temporary error: refused, reset, truncated, throttled or too slow."""

    def __init__(self, what: str, *, where: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(what, where=where)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Size and etag of an object; the etag changes whenever the bytes may have."""

    key: str
    size: int
    etag: str


class ObjectReader(Protocol):
    """Reader of an object's requested bytes; a short body is an error."""

    info: ObjectInfo

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill `buffer` from its start; return the bytes read, 0 only at the end."""


class Store(Protocol):
    """Object store below a URL."""

    url: str

    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> AbstractContextManager[ObjectReader]:
        """Read from `offset`, to the object's end or at most `length` (>= 1) bytes.

        With `if_match`, raise if the object's etag differs.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return size and etag; raise `ObjectMissingError` if absent."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`, in key order."""

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object atomically; raise `ObjectExistsError` if it exists."""

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object of etag `if_match` (`None`: absent), else raise `PreconditionFailedError`."""

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""


def checked_key(key: str, where: str) -> str:
    """Return `key` if it is a plain relative path; raise `InvalidInputError` if not."""
    try:
        return safe_key(key)
    except ValueError as error:
        raise InvalidInputError(str(error), where=where, key="key") from error


def is_folder_marker(key: str, size: int) -> bool:
    """Return whether an object stands for a folder: a console's empty `reviews/`, or Hadoop's `reviews_$folder$`."""
    return not key or key.endswith("/") or (not size and key.endswith("_$folder$"))


def joined(prefix: str, key: str) -> str:
    """Return the name of `key` in its bucket."""
    return f"{prefix}/{key}" if prefix else key


def plain_etag(etag: str) -> str:
    """Return an etag without quotes, as services differ in quoting."""
    return etag.strip('"')


def quoted_etag(etag: str) -> str:
    """Return an etag with quotes, as in a header."""
    return f'"{plain_etag(etag)}"'
