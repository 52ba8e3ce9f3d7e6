"""Origin of each imported row: the user's own file and line, in a side file of the dataset.

The rows of a dataset are shuffled and renumbered. The side file has one row for each row of the dataset, in the same
order, with the columns `file`, `unit` (`line` or `row`) and `number`. Trainings do not read it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plumbline.data.rows import Place, Row
from plumbline.data.shards import parquet_bytes, store_bytes
from plumbline.digest import digest_bytes
from plumbline.errors import CorruptDataError
from plumbline.schema.base import read_model
from plumbline.schema.manifest import DataFile, Manifest
from plumbline.stores import Store
from plumbline.stores.writing import read_object

__all__ = ["row_origins", "write_origins"]

_MAX_BYTES = 1 << 30
_MAX_MANIFEST_BYTES = 64 << 20
_BATCH_ROWS = 1 << 16


def write_origins(folder: Path, rows: Iterable[Row], keys: Mapping[str, str]) -> DataFile | None:
    """Write the places of `rows`, with `keys` for the names of files; `None` for rows without places."""
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
    """Return the column of `names[index]`, each name once: the names of all rows may be gigabytes."""
    # With a repeated name, the bytes of Parquet's dictionary differ from one write to the next.
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    numbers_of_names = np.array([numbers[name] for name in names], np.int32)
    return pa.DictionaryArray.from_arrays(numbers_of_names[indices], list(numbers))


def row_origins(store: Store, name: str, manifest_sha256: str, rows: Iterable[int]) -> dict[int, Place]:
    """Return the user's own file and line of `rows`, by their numbers in the dataset.

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
