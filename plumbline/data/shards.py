"""Parquet shards with reproducible bytes.

All writer settings are fixed, without a time or pandas' metadata. Two influences remain, which the lock file pins: the
line `created_by` with pyarrow's release, and pyarrow's compressor.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.data.rows import Row
from plumbline.schema.manifest import DataFile, Shard

_KEY_DIGITS = 12


def store_bytes(folder: Path, stem: str, suffix: str, data: bytes) -> DataFile:
    """Write `data` below `folder` under a key with its digest."""
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
    """Return the SHA-256 of rows with their ids, whatever file stores them."""
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
    """Return a Parquet file of one row group, whose bytes depend on the table alone."""
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
