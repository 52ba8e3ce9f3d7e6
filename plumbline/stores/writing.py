"""Writing what may be there already, and reading small objects whole."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from plumbline.digest import digest_bytes, digest_file
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.stores.base import ObjectExistsError, ObjectInfo, PreconditionFailedError, Store

__all__ = ["digest_object", "ensure_content", "ensure_object", "read_bytes", "read_object"]

_BUFFER_BYTES = 1 << 20
_MOST_REPLACED_BYTES = 256 << 20
_DELETE = "delete that object: its bytes are not those that its name tells"


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
    sha256 = sha256 or _digest(source)
    try:
        store.create(key, source)
    except ObjectExistsError as error:
        if digest_object(store, key)[1] != sha256:
            raise InvalidInputError("exists already, with other bytes", where=store.url, key=key) from error
        return False
    if verify and digest_object(store, key)[1] != sha256:
        raise CorruptDataError("reads back as other bytes than were written", where=store.url, key=key)
    return True


def ensure_content(store: Store, key: str, source: bytes | Path, sha256: str) -> bool:
    """Make the object of a `key` that names its content be just that: whether it had to be written.

    Other bytes under such a key were damaged, on their way or since, and would be in everybody's way for good: they
    are replaced, unless they are too many to be held in memory.
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
    with contextlib.suppress(PreconditionFailedError):  # another was faster, who puts the same there
        store.swap(key, data, if_match=seen.etag)
    if digest_object(store, key)[1] != sha256:
        raise CorruptDataError("reads back as other bytes than were written", where=store.url, key=key, hint=_DELETE)
    return True


def _digest(source: bytes | Path) -> str:
    return digest_bytes(source) if isinstance(source, bytes) else digest_file(source)
