"""Rows in a temporary file, for datasets larger than memory.

A row in memory is its file offset and its place in the order: 16 bytes, whatever the length of its text.
"""

from __future__ import annotations

import os
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from plumbline.data.rows import Place, Row

_HEAD = struct.Struct("<IIhIQ")
_NO_LABEL = -1
_NO_PAIR = 0xFFFFFFFF
_NO_PLACE = 0xFFFFFFFF


class Spool:
    """Unnamed temporary file of rows, removed however the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed in `__exit__`
        self._files = _Files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, rows: Iterable[Row]) -> SpooledRows:
        """Write `rows`; return them in the same order."""
        places = array("Q")
        position = self._file.tell()
        for row in rows:
            text = row.text.encode()
            pair = b"" if row.pair is None else row.pair.encode()
            label = _NO_LABEL if row.label is None else row.label
            place = self._files.packed(row.place)
            self._file.write(_HEAD.pack(len(text), _NO_PAIR if row.pair is None else len(pair), label, *place))
            self._file.write(text + pair)
            places.append(position)
            position += _HEAD.size + len(text) + len(pair)
        self._file.flush()
        return SpooledRows(self._file.fileno(), np.frombuffer(places, dtype=np.uint64), self._files)


class _Files:
    """Numbers of the files that rows come from."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: list[tuple[str, str]] = []

    def packed(self, place: Place | None) -> tuple[int, int]:
        """Return the file's number, and the row's number in it."""
        if place is None:
            return _NO_PLACE, 0
        number = self._numbers.setdefault(place[:2], len(self._names))
        if number == len(self._names):
            self._names.append(place[:2])
        return number, place.number

    def place(self, file: int, number: int) -> Place | None:
        """Return the place of a packed row."""
        return None if file == _NO_PLACE else Place(*self._names[file], number)


class SpooledRows:
    """Ordered rows of a spool, re-readable while the spool is open."""

    def __init__(
        self, descriptor: int, places: NDArray[np.uint64], files: _Files, classes: Sequence[int] | None = None
    ) -> None:
        self._descriptor = descriptor
        self._places = places
        self._files = files
        self._classes = classes

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, piece: slice) -> SpooledRows:
        return SpooledRows(self._descriptor, self._places[piece], self._files, self._classes)

    def __iter__(self) -> Iterator[Row]:
        for place in self._places:
            length, pair_length, label, *origin = _HEAD.unpack(os.pread(self._descriptor, _HEAD.size, place))
            paired = pair_length != _NO_PAIR
            data = os.pread(self._descriptor, length + (pair_length if paired else 0), int(place) + _HEAD.size)
            number = None if label == _NO_LABEL else label if self._classes is None else self._classes[label]
            pair = data[length:].decode() if paired else None
            yield Row(data[:length].decode(), number, pair, self._files.place(*origin))

    def ordered(self, order: NDArray[Any]) -> SpooledRows:
        """Return the same rows in a different order."""
        return SpooledRows(self._descriptor, self._places[order], self._files, self._classes)

    def labelled(self, classes: Sequence[int]) -> SpooledRows:
        """Return the same rows with the class `classes[label]` for each label."""
        return SpooledRows(self._descriptor, self._places, self._files, classes)

    @property
    def texts(self) -> Iterable[str]:
        """Return an iterable of all texts, both of a pair, readable several times."""
        return _Texts(self)


class _Texts:
    def __init__(self, rows: SpooledRows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[str]:
        return (text for row in self._rows for text in (row.text, row.pair) if text is not None)
