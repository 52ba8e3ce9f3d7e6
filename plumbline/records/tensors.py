"""Reader of untrusted safetensors files, which validates the header first.

Its numpy reader does not support bfloat16: a captured bfloat16 tensor is widened to float32 exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from plumbline.schema.errors import CorruptDataError

Arrays = dict[str, NDArray[Any]]

_MAX_HEADER_BYTES = 16 << 20
_LENGTH_BYTES = 8

_DTYPES: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U8": "<u1",
    "BOOL": "|b1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
}


def read_tensors(path: Path) -> Arrays:
    """Return all tensors of a file; raise `CorruptDataError` if malformed."""
    with _malformed(path):
        data = path.read_bytes()
        _check_length(data[:_LENGTH_BYTES])
        entries = dict(deserialize(data))  # type: ignore[no-untyped-call]
        return {name: _tensor(**entries[name]) for name in sorted(entries)}


def check_tensors(path: Path) -> None:
    """Check a file's header only; raise `CorruptDataError` if malformed."""
    with _malformed(path):
        with path.open("rb") as file:
            _check_length(file.read(_LENGTH_BYTES))
        with safe_open(path, framework="numpy") as tensors:
            for tensor in map(tensors.get_slice, tensors.keys()):
                np.broadcast_to(np.zeros((), _DTYPES[tensor.get_dtype()]), tensor.get_shape())


def _check_length(head: bytes) -> None:
    if int.from_bytes(head, "little") > _MAX_HEADER_BYTES:
        raise ValueError("the header is too long")


@contextmanager
def _malformed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorruptDataError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise CorruptDataError(f"not a safetensors file: {error}", where=str(path)) from error


def _tensor(dtype: str, shape: list[int], data: bytes) -> NDArray[Any]:
    array: NDArray[Any] = np.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)
    if dtype == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array
