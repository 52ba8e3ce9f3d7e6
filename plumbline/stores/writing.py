"""Writing what may be there already, and reading small objects whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

from plumbline.digest import digest_bytes
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.stores.base import ObjectExistsError, ObjectInfo, Store

__all__ = ["digest_object", "ensure_object", "read_bytes", "read_object"]

_BUFFER_BYTES = 1 << 20


def read_object(store: Store, key: str, *, max_bytes: int) -> tuple[bytes, ObjectInfo]:
    """A small object's bytes and what the store says of it; `InvalidInputError` if it is larger than allowed."""
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
    """A small object's bytes."""
    return read_object(store, key, max_bytes=max_bytes)[0]


def digest_object(store: Store, key: str) -> tuple[int, str]:
    """Length and SHA-256 of an object, read in pieces."""
    hasher, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with store.open(key) as reader:
        while size := reader.readinto(buffer):
            hasher.update(buffer[:size])
            total += size
    return total, hasher.hexdigest()


def ensure_object(store: Store, key: str, source: bytes | Path, *, sha256: str = "", verify: bool = True) -> bool:
    """Make the object of `key` be `source`: whether it had to be written.

    An object that is there already is right if its bytes are the same, and an error if not: keys are create-only.
    With `verify`, what was written is read back and hashed.
    """
    sha256 = sha256 or (digest_bytes(source) if isinstance(source, bytes) else _digest_path(source))
    try:
        store.create(key, source)
        written = True
    except ObjectExistsError as error:
        if digest_object(store, key)[1] != sha256:
            raise InvalidInputError("exists already, with other bytes", where=store.url, key=key) from error
        return False
    if verify and digest_object(store, key)[1] != sha256:
        raise CorruptDataError("reads back as other bytes than were written", where=store.url, key=key)
    return written


def _digest_path(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
