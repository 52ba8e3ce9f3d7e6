"""Receipt of a dataset import, and each row's origin.

The receipt has what was read, how, and which labels were taken for the same class. An origin is the user's own file and
line, in a side file of the dataset.

The rows of a dataset are shuffled and renumbered. The side file has one row for each row of the dataset, in the same
order, with the columns `file`, `unit` (`line` or `row`) and `number`. Trainings do not read it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plumbline.data.datasets.rows import Columns, Row
from plumbline.data.datasets.shards import parquet_bytes, store_bytes
from plumbline.data.stores import Store
from plumbline.data.stores.protocol import read_object
from plumbline.schema.base import read_model
from plumbline.schema.delimited import Place
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.escape import first_of
from plumbline.schema.manifest import DataFile, ImportReceipt, Manifest

_MOST_NAMED = 6
_MOST_NOTES = 20


@dataclass(slots=True)
class Reading:
    """Import receipt under construction, to which each reader adds its counts."""

    files: int = 0
    lines: int = 0
    rows: int = 0
    read_as: dict[str, None] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    unread: tuple[str, ...] = ()
    spans: int = 0
    first_span: Place | None = None
    spellings: dict[str, dict[str, None]] = field(default_factory=dict)

    def add_text(self, read_as: str, lines: int) -> None:
        """Add a file's format, and its number of lines or rows."""
        self.read_as[read_as] = None
        self.lines += lines

    def add_spans(self, spans: int, first: Place | None) -> None:
        """Count a file's multi-line rows, and note the first."""
        self.spans += spans
        self.first_span = self.first_span or first

    def add_rows(self, read_as: str, rows: int, columns: Columns) -> None:
        """Add a whole split of a `datasets` dataset."""
        self.files += 1
        self.rows += rows
        self.add_text(read_as, rows)
        self.add_columns(columns)

    def add_columns(self, columns: Columns) -> None:
        """Add the columns that were read from a file."""
        roles = (("text", columns.text), ("second text", columns.pair), ("label", columns.label))
        self.columns[", ".join(f"{role} {name!r}" for role, name in roles if name is not None)] = None

    def add_label(self, name: str, spelling: str) -> None:
        """Add a label as the file spells it."""
        known = self.spellings.setdefault(name, {})
        if len(known) <= _MOST_NAMED:
            known[spelling] = None

    def receipt(self, keys: Mapping[str, str], spelling: Mapping[str, str]) -> ImportReceipt:
        """Return the finished receipt. `keys` names files within the source, `spelling` classes of merged labels."""
        notes = []
        if self.first_span:
            first = str(self.first_span._replace(file=keys.get(self.first_span.file, self.first_span.file)))
            many = f"{self.spans:,} rows of several lines, the first: {first}"
            notes.append(many if self.spans > 1 else f"1 row of several lines: {first}")
        if self.empty:
            notes.append(f"files without a row: {first_of([keys.get(name, name) for name in self.empty], _MOST_NAMED)}")
        if self.unread:
            notes.append(f"unused: {first_of(self.unread, _MOST_NAMED)}")
        for name, labels in self._merged(spelling).items():
            if len(labels) > 1:
                notes.append(f"labels read as the class {name}: {first_of(list(map(ascii, labels)), _MOST_NAMED)}")
        return ImportReceipt(
            files=self.files, lines=self.lines, rows=self.rows, read_as=tuple(self.read_as)[:_MOST_NOTES],
            columns=tuple(self.columns)[:_MOST_NOTES], notes=tuple(notes)[:_MOST_NOTES],
        )  # fmt: skip

    def _merged(self, spelling: Mapping[str, str]) -> dict[str, list[str]]:
        merged: dict[str, list[str]] = {}
        for name in sorted(self.spellings):
            merged.setdefault(spelling.get(name, name), []).extend(sorted(self.spellings[name]))
        return merged


def receipt_lines(manifest: Manifest) -> list[str]:
    """Format the receipt as lines: files, columns, rows; empty for generated data."""
    receipt = manifest.receipt
    if receipt is None:
        return []
    kept = sum(shard.num_rows for shard in manifest.shards)
    files = "1 file" if receipt.files == 1 else f"{receipt.files:,} files"
    counts = f"read {receipt.lines:,} lines, {receipt.rows:,} rows of {files}"
    counts += f"; {kept:,} rows kept" if kept != receipt.rows else ""
    return [counts, *receipt.read_as, *receipt.columns, *receipt.notes]


_MAX_BYTES = 1 << 30
_MAX_MANIFEST_BYTES = 64 << 20
_BATCH_ROWS = 1 << 16


def write_origins(folder: Path, rows: Iterable[Row], keys: Mapping[str, str]) -> DataFile | None:
    """Write each row's origin (file and line), with `keys` for the names of files. `None` for rows without places."""
    known: dict[tuple[str, str], int] = {}
    files, numbers = array("i"), array("q")  # 12 bytes a row, as there may be many millions
    for row in rows:
        if row.place is not None:
            files.append(known.setdefault((keys.get(row.place.file, row.place.file), row.place.unit), len(known)))
            numbers.append(row.place.number)
    if not known:
        return None
    texts = [_column(np.frombuffer(files, np.int32), [name[at] for name in known]) for at in (0, 1)]
    table = pa.table({"file": texts[0], "unit": texts[1], "number": np.frombuffer(numbers, np.int64)})
    return store_bytes(folder, "origins", ".parquet", parquet_bytes(table, dictionary=["file", "unit"]))


def _column(indices: NDArray[np.int32], names: Sequence[str]) -> pa.DictionaryArray:
    """Return a dictionary-encoded column of file names, to save memory."""
    # With a repeated name, the bytes of Parquet's dictionary differ from one write to the next.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    numbers_of_names = np.array([numbers[name] for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(numbers_of_names[indices], list(numbers))


def row_origins(store: Store, name: str, manifest_sha256: str, rows: Iterable[int]) -> dict[int, Place]:
    """Return the user's own file and line for these dataset rows.

    Rows of generated data, of datasets without origins, and of a dataset that is no longer published are left out.
    """
    data, _ = read_object(store, f"{name}/manifest.json", max_bytes=_MAX_MANIFEST_BYTES)
    manifest = read_model(Manifest, data, where=f"{store.url}/{name}")
    if manifest.origins is None or manifest.digest != manifest_sha256:
        return {}
    key = f"{name}/{manifest.origins.key}"
    data, _ = read_object(store, key, max_bytes=_MAX_BYTES)
    if digest_bytes(data) != manifest.origins.sha256:
        raise CorruptDataError("does not match the manifest", where=f"{store.url}/{key}")
    return _chosen(data, set(rows))


def _chosen(data: bytes, rows: set[int]) -> dict[int, Place]:
    places = {}
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        first = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            for row in rows.intersection(range(first, first + batch.num_rows)):
                places[row] = Place(*(column[row - first].as_py() for column in batch.columns))
            first += batch.num_rows
    return dict(sorted(places.items()))
