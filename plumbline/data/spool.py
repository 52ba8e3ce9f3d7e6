"""Rows on disk in a temporary file, so that a dataset larger than memory can still be shuffled, cut and read again.

A row in memory is its place in the file and its place in the order: 16 bytes, whatever the length of its text.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from plumbline.data.rows import Row

__all__ = ["Spool", "SpooledRows"]

_HEAD = struct.Struct("<Ih")
_NO_LABEL = -1


class Spool:
    """The file of the rows. It has no name, so that nothing of it is left, however the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed in `__exit__`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: Iterable[Row]) -> SpooledRows:
        """Write `rows`, and give them back in the same order."""
        places = array("Q")
        position = self._file.tell()
        for row in rows:
            text = row.text.encode()
            self._file.write(_HEAD.pack(len(text), _NO_LABEL if row.label is None else row.label))
            self._file.write(text)
            places.append(position)
            position += _HEAD.size + len(text)
        self._file.flush()
        return SpooledRows(self._file.fileno(), np.frombuffer(places, dtype=np.uint64))


class SpooledRows:
    """Rows of a spool in some order, readable as often as needed while the spool is open."""

    def __init__(self, descriptor: int, places: NDArray[np.uint64]) -> None:
        self._descriptor = descriptor
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, piece: slice) -> SpooledRows:
        return SpooledRows(self._descriptor, self._places[piece])

    def __iter__(self) -> Iterator[Row]:
        for place in self._places:
            length, label = _HEAD.unpack(os.pread(self._descriptor, _HEAD.size, place))
            text = os.pread(self._descriptor, length, int(place) + _HEAD.size).decode()
            yield Row(text, None if label == _NO_LABEL else label)

    def ordered(self, order: NDArray[Any]) -> SpooledRows:
        """The same rows in another order."""
        return SpooledRows(self._descriptor, self._places[order])

    @property
    def texts(self) -> Iterable[str]:
        """Their texts, to be read more than once."""
        return _Texts(self)


class _Texts:
    def __init__(self, rows: SpooledRows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[str]:
        return (row.text for row in self._rows)
