"""Checksums of batches: integer sums that are equal on every device, in any order and for any split of the batch.

The checksum of a field is the sum of `value * key(row, place)` modulo 2^64, where `row` counts the rows of the global
batch. Summands of micro-batches and processes add up. The values stay on the device: no synchronisation is needed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLACES = 1 << 20
"""Places of one row; rows are further apart."""


@cache
def keys(rows: int, length: int) -> NDArray[np.int64]:
    """Return odd keys of all places, int64 [rows, length], by splitmix64."""
    places = np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(_PLACES) + np.arange(length, dtype=np.uint64)[None]
    value = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((value ^ (value >> np.uint64(31))) | np.uint64(1)).view(np.int64)


def to_mark(total: int) -> str:
    """Return 16 hex digits of a sum modulo 2^64."""
    return f"{total % (1 << 64):016x}"


def mark(values: NDArray[Any]) -> str:
    """Return the checksum of one field of a batch, integers [rows] or [rows, length]."""
    flat = values.astype(np.int64).reshape(len(values), -1)
    return to_mark(int((flat * keys(*flat.shape)).sum(dtype=np.int64)))


def marks_of(fields: dict[str, NDArray[Any]]) -> dict[str, list[str]]:
    """Return the checksums of fields [steps, rows, ...], by field."""
    return {name: [mark(step) for step in steps] for name, steps in fields.items()}
