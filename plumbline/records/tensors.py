"""Reader of untrusted safetensors files, with numpy alone.

The library's own numpy reader does not support bfloat16; a captured bfloat16 tensor is widened to float32 exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.errors import CorruptDataError

Arrays = dict[str, NDArray[Any]]

_MAX_HEADER_BYTES = 16 << 20
_MAX_TENSORS = 100_000
# numpy's limit. A longer shape of huge numbers would cost much time before its refusal.
_MAX_DIMENSIONS = 64
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
        entries = _entries(data, len(data))
        return {name: _tensor(memoryview(data), entry) for name, entry in entries.items()}


def check_tensors(path: Path) -> None:
    """Raise `CorruptDataError` for a malformed file; read its header only."""
    with _malformed(path), path.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        length = min(int.from_bytes(head, "little"), _MAX_HEADER_BYTES)
        _entries(head + file.read(length), path.stat().st_size)


@contextmanager
def _malformed(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CorruptDataError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptDataError(f"not a safetensors file: {error}", where=str(path)) from error


_Entry = tuple[str, tuple[int, ...], int, int]
"""Type, shape, and the first and last byte in the file."""


def _entries(data: bytes, file_bytes: int) -> dict[str, _Entry]:
    """Return the checked header of a file of this size, by name."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    first = _LENGTH_BYTES + length
    if len(data) < _LENGTH_BYTES or length > _MAX_HEADER_BYTES or first > file_bytes:
        raise ValueError("the header is longer than the file")
    header = json.loads(data[_LENGTH_BYTES:first], object_pairs_hook=_without_duplicates)
    header.pop("__metadata__", None)
    if len(header) > _MAX_TENSORS:
        raise ValueError(f"{len(header)} tensors")
    entries = {str(name): _entry(content, first, file_bytes) for name, content in sorted(header.items())}
    _check_apart(entries.values())
    return entries


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a name is given twice")
    return content


def _whole(number: object) -> int:
    """Return `number`; raise unless its type is exactly int, not JSON's true or 1.5."""
    if type(number) is not int:
        raise ValueError(f"{number!r:.20} is not an integer")
    return number


def _entry(content: dict[str, Any], first: int, file_bytes: int) -> _Entry:
    dtype = np.dtype(_DTYPES[content["dtype"]])
    shape = tuple(_whole(size) for size in content["shape"])
    start, end = (first + _whole(offset) for offset in content["data_offsets"])
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"a tensor of {len(shape)} dimensions")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or not first <= start <= end <= file_bytes or end - start != count * dtype.itemsize:
        raise ValueError("a tensor's offsets do not match its shape")
    return content["dtype"], shape, start, end


def _check_apart(entries: Iterable[_Entry]) -> None:
    """Raise if two tensors share bytes, which would multiply the memory needed."""
    last = 0
    for start, end in sorted((start, end) for _, _, start, end in entries):
        if start < last:
            raise ValueError("tensors overlap")
        last = max(last, end)


def _tensor(data: memoryview, entry: _Entry) -> NDArray[Any]:
    kind, shape, start, end = entry
    array: NDArray[Any] = np.frombuffer(data[start:end], dtype=np.dtype(_DTYPES[kind])).reshape(shape)
    if kind == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array
