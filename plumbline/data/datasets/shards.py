"""Dataset rows on disk: temporary spool, then reproducible Parquet shards.

All writer settings of the shards are fixed, without a time or pandas' metadata. Two influences remain, which the lock
file pins: the line `created_by` with pyarrow's release, and pyarrow's compressor.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from typing_extensions import Self

from plumbline.data.datasets.rows import Row
from plumbline.schema.delimited import Place
from plumbline.schema.manifest import DataFile, Shard

_KEY_DIGITS = 12

_HEAD = struct.Struct("<IIhIQ")
_NO_LABEL = -1
_NO_PAIR = 0xFFFFFFFF
_NO_PLACE = 0xFFFFFFFF


class Spool:
    """Unnamed temporary file of rows, removed even if the process is killed.

    A row in memory is its file offset and its place in the order: 16 bytes, whatever the length of its text.
    """

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
        """Append `rows`; return a handle to read them in order."""
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
    """Mapping between source file names and numbers."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._names: list[tuple[str, str]] = []

    def packed(self, place: Place | None) -> tuple[int, int]:
        """Convert a row's origin to file number and row number."""
        if place is None:
            return _NO_PLACE, 0
        number = self._numbers.setdefault(place[:2], len(self._names))
        if number == len(self._names):
            self._names.append(place[:2])
        return number, place.number

    def place(self, file: int, number: int) -> Place | None:
        """Convert file number and row number back to an origin."""
        return None if file == _NO_PLACE else Place(*self._names[file], number)


class SpooledRows:
    """Rows in a spool file, re-readable while the file is open."""

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
        """Return the same rows in the given order."""
        return SpooledRows(self._descriptor, self._places[order], self._files, self._classes)

    def labelled(self, classes: Sequence[int]) -> SpooledRows:
        """Return the same rows with label numbers mapped through `classes`."""
        return SpooledRows(self._descriptor, self._places, self._files, classes)

    @property
    def texts(self) -> Iterable[str]:
        """Return a re-readable iterable of all texts, including second texts."""
        return _Texts(self)


class _Texts:
    def __init__(self, rows: SpooledRows) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[str]:
        return (text for row in self._rows for text in (row.text, row.pair) if text is not None)


def store_bytes(folder: Path, stem: str, suffix: str, data: bytes) -> DataFile:
    """Write `data` below `folder`, under a key that includes its digest."""
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"{stem}-{sha256[:_KEY_DIGITS]}{suffix}"
    path = folder / key
    write_whole(path, data)
    return DataFile(key=key, size=len(data), sha256=sha256)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically; remove the partial file on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_shards(folder: Path, split: str, rows: Iterable[Row], first_id: int, rows_per_shard: int) -> list[Shard]:
    """Write `rows` as the shards of `split`, with ids from `first_id`."""
    shards: list[Shard] = []
    rest = iter(rows)
    while piece := list(islice(rest, rows_per_shard)):
        number = len(shards)
        first = first_id + number * rows_per_shard
        data = _parquet(piece, first)
        file = store_bytes(folder, f"{split}/{number:05d}", ".parquet", data)
        shards.append(Shard(**file.model_dump(), num_rows=len(piece), rows_sha256=_rows_digest(piece, first)))
    return shards


def _rows_digest(rows: Sequence[Row], first_id: int) -> str:
    """Return the SHA-256 of rows and ids, independent of file format."""
    found = hashlib.sha256()
    for number, row in enumerate(rows, start=first_id):
        values = (str(number), row.text, row.pair, None if row.label is None else str(row.label))
        for value in values:
            data = b"" if value is None else value.encode()
            # The length separates values; a missing one has none.
            found.update(b"-" if value is None else f"{len(data)}:".encode())
            found.update(data)
    return found.hexdigest()


def _parquet(rows: Sequence[Row], first_id: int) -> bytes:
    fields = [pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string(), nullable=False)]
    columns = [
        pa.array(range(first_id, first_id + len(rows)), pa.int64()),
        pa.array([row.text for row in rows], pa.string()),
    ]
    if rows[0].pair is not None:
        fields.append(pa.field("text_pair", pa.string(), nullable=False))
        columns.append(pa.array([row.pair for row in rows], pa.string()))
    if rows[0].label is not None:
        fields.append(pa.field("label", pa.int64(), nullable=False))
        columns.append(pa.array([row.label for row in rows], pa.int64()))
    return parquet_bytes(pa.Table.from_arrays(columns, schema=pa.schema(fields)))


def parquet_bytes(table: pa.Table, *, dictionary: bool | list[str] = False) -> bytes:
    """Return a Parquet file with reproducible bytes."""
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=3,
        use_dictionary=dictionary,
        write_statistics=False,
        store_schema=False,
        row_group_size=table.num_rows,
    )
    return sink.getvalue()
