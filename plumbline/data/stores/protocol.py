"""Store: interface of all object stores, key and etag rules, idempotent writes.

All keys are relative to the store's URL, with forward slashes. Every backend raises the same errors, and never retries:
`plumbline.data.stores.retry` does that for all of them. It also converts whatever else a backend raises: callers treat
a `PlumblineError` as one store's failure, and anything else would end the round of every platform.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from plumbline.schema.digest import digest_bytes, digest_file
from plumbline.schema.errors import CorruptDataError, ExitCode, InvalidInputError, PlumblineError, UnavailableError
from plumbline.schema.store_url import safe_key

T = TypeVar("T")

_BUFFER_BYTES = 1 << 20
_MOST_REPLACED_BYTES = 256 << 20
_MOST_PAGES = 2_000
"""Of at least 1,000 objects each: a list that goes on is no list of a store."""
_DELETE = "delete that object: its bytes do not match the digest in its name"


class ObjectMissingError(InvalidInputError):
    """Error: the object or bucket does not exist. A retry will not help."""


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
    """Error: the object has changed since it was read. A new attempt reads the new object."""


class StoreUnavailableError(UnavailableError):
    """Temporary error: refused, reset, truncated, throttled or too slow."""

    def __init__(self, what: str, *, where: str = "", retry_after_seconds: float | None = None) -> None:
        super().__init__(what, where=where)
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Size and etag of an object; changed bytes change the etag. Every store gives both."""

    key: str
    size: int
    etag: str

    def __post_init__(self) -> None:
        if self.size < 0 or not self.etag:
            raise StoreUnavailableError(f"the answer describes no object: {self.size} bytes, etag {self.etag!r}")


class ObjectReader(Protocol):
    """Reader of an object's requested bytes; a short body is an error."""

    info: ObjectInfo

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill `buffer`; return the bytes read, 0 only at the end."""


class Store(Protocol):
    """Object store below a URL."""

    url: str

    def open(
        self, key: str, *, offset: int = 0, length: int | None = None, if_match: str | None = None
    ) -> AbstractContextManager[ObjectReader]:
        """Open an object for reading from `offset`, at most `length` bytes.

        With `if_match`, raise if the object's etag differs.
        """

    def stat(self, key: str) -> ObjectInfo:
        """Return an object's size and etag; raise `ObjectMissingError` if absent."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all objects whose key starts with `prefix`, in key order."""

    def create(self, key: str, data: bytes | Path) -> ObjectInfo:
        """Write a new object atomically; raise `ObjectExistsError` if it exists."""

    def swap(self, key: str, data: bytes, *, if_match: str | None) -> ObjectInfo:
        """Replace the object with etag `if_match` (`None`: absent), else raise `PreconditionFailedError`."""

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""


def checked_key(key: str, where: str) -> str:
    """Return `key` if it is a plain relative path; raise `InvalidInputError` otherwise."""
    try:
        return safe_key(key)
    except ValueError as error:
        raise InvalidInputError(str(error), where=where, key="key") from error


def is_folder_marker(key: str, size: int) -> bool:
    """Return whether an object is a folder marker: a console's empty `reviews/`, or Hadoop's `reviews_$folder$`."""
    return not key or key.endswith("/") or (not size and key.endswith("_$folder$"))


def bounded_pages(where: str, read: Callable[[str], tuple[T, str]]) -> Iterator[T]:
    """Yield a listing's pages. `read` returns the page of a token ("": the first) and the next token ("": none)."""
    token, seen = "", set[str]()
    for _ in range(_MOST_PAGES):
        page, token = read(token)
        yield page
        if not token:
            return
        if token in seen:
            break
        seen.add(token)
    raise UnavailableError(f"the list does not end: {len(seen) + 1} pages were read", where=where)


def joined(prefix: str, key: str) -> str:
    """Prepend the store's prefix to `key`."""
    return f"{prefix}/{key}" if prefix else key


def plain_etag(etag: str) -> str:
    """Return an etag without quotes, as services quote differently."""
    return etag.strip('"')


def quoted_etag(etag: str) -> str:
    """Return an etag in quotes, as HTTP headers need."""
    return f'"{plain_etag(etag)}"'


def read_object(store: Store, key: str, *, max_bytes: int) -> tuple[bytes, ObjectInfo]:
    """Return a small object's bytes and info; raise `InvalidInputError` if too large."""
    with store.open(key) as reader:
        if reader.info.size > max_bytes:
            raise InvalidInputError(
                f"{reader.info.size} bytes, more than the {max_bytes} allowed", where=store.url, key=key
            )
        data = bytearray(reader.info.size)
        view, position = memoryview(data), 0
        while position < len(data) and (size := reader.readinto(view[position:])):
            position += size
        return bytes(data[:position]), reader.info


def read_bytes(store: Store, key: str, *, max_bytes: int = 64 << 20) -> bytes:
    """Return a small object's bytes."""
    return read_object(store, key, max_bytes=max_bytes)[0]


def digest_object(store: Store, key: str) -> tuple[int, str]:
    """Return length and SHA-256 of an object."""
    hasher, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with store.open(key) as reader:
        while size := reader.readinto(buffer):
            hasher.update(buffer[:size])
            total += size
    return total, hasher.hexdigest()


def ensure_object(store: Store, key: str, source: bytes | Path, *, sha256: str = "", verify: bool = True) -> bool:
    """Write `source` under `key` unless present; return whether it was written.

    An existing object with the same bytes is accepted, with different bytes an error: keys are create-only. With
    `verify`, the written object is read back and hashed.
    """
    sha256 = sha256 or _digest(source)
    try:
        store.create(key, source)
    except ObjectExistsError as error:
        if digest_object(store, key)[1] != sha256:
            raise InvalidInputError("exists already, with different bytes", where=store.url, key=key) from error
        return False
    if verify and digest_object(store, key)[1] != sha256:
        raise CorruptDataError("different bytes are read back than were written", where=store.url, key=key)
    return True


def ensure_content(store: Store, key: str, source: bytes | Path, sha256: str) -> bool:
    """Write content under its digest-based `key`; return whether it was written.

    Different bytes under such a key were damaged, in transit or since, and would block every writer: they are replaced,
    unless they are too large for memory.
    """
    try:
        return ensure_object(store, key, source, sha256=sha256)
    except InvalidInputError as error:
        seen = store.stat(key)
        if digest_object(store, key)[1] == sha256:
            return True
        if (source.stat().st_size if isinstance(source, Path) else len(source)) > _MOST_REPLACED_BYTES:
            raise CorruptDataError(error.what, where=store.url, key=key, hint=_DELETE) from error
    data = source.read_bytes() if isinstance(source, Path) else source
    with contextlib.suppress(PreconditionFailedError):  # a concurrent writer wrote the same content
        store.swap(key, data, if_match=seen.etag)
    if digest_object(store, key)[1] != sha256:
        raise CorruptDataError(
            "different bytes are read back than were written", where=store.url, key=key, hint=_DELETE
        )
    return True


def _digest(source: bytes | Path) -> str:
    return digest_bytes(source) if isinstance(source, bytes) else digest_file(source)
