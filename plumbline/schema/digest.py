"""Digests (SHA-256) of values, equal on every platform.

A digest is the SHA-256 of a defined byte string: JSON in canonical form, files as they are, and arrays as
`dtype|shape|` followed by their values in little-endian C order. For digests of tensors see `plumbline.train.digests`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray


_CHUNK_BYTES = 1 << 20
_LONGEST_NAME = 63
SHORT_DIGITS = 16
"""Hex digits of a short digest."""
_MARK_DIGITS = 12


def canonical_json(value: Any) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, UTF-8, no NaN or infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the hex SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def bounded_name(name: str) -> str:
    """Return a name, shortened with a digest if too long."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - _MARK_DIGITS - 1]}-{digest_bytes(name.encode())[:_MARK_DIGITS]}"


def digest_json(value: Any) -> str:
    """Return the SHA-256 of `value` in canonical JSON."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def digest_lock(path: Path) -> str:
    """Return the SHA-256 of a lock's text with Unix line ends: git may give a checkout other ones."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def digest_array(array: NDArray[Any]) -> str:
    """Return the SHA-256 of an array's dtype, shape and values."""
    import numpy as np

    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    hasher = hashlib.sha256(f"{array.dtype.name}|{','.join(map(str, array.shape))}|".encode())
    hasher.update(little.data.cast("B") if little.size else b"")
    return hasher.hexdigest()
