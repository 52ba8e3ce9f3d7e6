"""Reader of untrusted safetensors files, with numpy alone.

The library's own numpy reader does not support bfloat16; a captured bfloat16 tensor is widened to float32 exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.errors import CorruptDataError

__all__ = ["Arrays", "read_tensors"]

Arrays = dict[str, NDArray[Any]]

_MAX_HEADER_BYTES = 16 << 20
_MAX_TENSORS = 100_000
# numpy's limit. A longer shape of huge numbers would cost much time before its refusal.
_MAX_DIMENSIONS = 64
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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptDataError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptDataError(f"not a safetensors file: {error}", where=str(path)) from error


def _parse(data: bytes) -> Arrays:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError("the header is longer than the file")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    if len(header) > _MAX_TENSORS:
        raise ValueError(f"{len(header)} tensors")
    body = memoryview(data)[8 + length :]
    _check_apart(header.values())
    return {str(name): _tensor(body, entry) for name, entry in sorted(header.items())}


def _whole(number: object) -> int:
    """Return `number`; raise unless its type is exactly int, not JSON's true or 1.5."""
    if type(number) is not int:
        raise ValueError(f"{number!r:.20} is not an integer")
    return number


def _check_apart(entries: Iterable[dict[str, Any]]) -> None:
    """Raise if two tensors share bytes, which would multiply the memory needed."""
    last = 0
    for start, end in sorted(tuple(map(_whole, entry["data_offsets"])) for entry in entries):
        if start < last:
            raise ValueError("tensors overlap")
        last = max(last, end)


def _tensor(body: memoryview, entry: dict[str, Any]) -> NDArray[Any]:
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    shape = tuple(_whole(size) for size in entry["shape"])
    start, end = (_whole(offset) for offset in entry["data_offsets"])
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not 0 <= start <= end <= len(body) or end - start != count * dtype.itemsize:
        raise ValueError("a tensor's offsets do not match its shape")
    array: NDArray[Any] = np.frombuffer(body[start:end], dtype=dtype).reshape(shape)
    if entry["dtype"] == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array
