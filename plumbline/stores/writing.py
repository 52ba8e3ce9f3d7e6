"""Idempotent writes, and reads of whole small objects."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from plumbline.digest import digest_bytes, digest_file
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.stores.protocol import ObjectExistsError, ObjectInfo, PreconditionFailedError, Store

_BUFFER_BYTES = 1 << 20
_MOST_REPLACED_BYTES = 256 << 20
_DELETE = "delete that object: its bytes do not match the digest in its name"


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
    """Create the object of `key` from `source`; return whether it was written.

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
    """Create the object of a content-addressed `key`; return whether it was written.

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
