"""Record with arrays that are loaded and checked on first use."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plumbline.records.part_sizes import MAX_ROW_BYTES, PART_FILES, max_part_bytes, max_rows, unpacked_bytes
from plumbline.records.tensors import Arrays, check_tensors, read_tensors
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.evidence import BATCH_FIELDS, SKETCH_SIZE
from plumbline.schema.record import RECORD_NAME, RunRecord, read_record
from plumbline.schema.spec import RunSpec

_MAX_IN_MEMORY = 128
"""Maximum number of a round's records in memory: those of one workload on a large fleet."""
_MAX_ROW_GROUPS = 1024
_MAX_FOOTER_BYTES = 1 << 20
_MAX_FOOTER_ENTRIES = 4096
_MAX_PAGE_OVERHEAD = 1 << 16
"""Maximum unpacked bytes of a row group that no row explains."""
_ROWS_AT_ONCE = 1 << 16
_ROW_COLUMNS = {"row_id": "int64", "text": "uint64", "label": "uint64"}
_ROW_SCHEMA = pa.schema([("row_id", pa.int64()), ("text", pa.uint64()), ("label", pa.uint64())])


@dataclass(frozen=True)
class LoadedRecord:
    """One training record. `arrays` replaces the folder's files for a record in memory. `sha256` is the file's."""

    record: RunRecord
    folder: Path
    arrays: dict[str, Arrays] = field(default_factory=dict)
    sha256: str = ""

    if not TYPE_CHECKING:  # mypy would accept every name

        def __getattr__(self, name: str) -> RunRecord:
            """Reload a record that was evicted from memory; raise if changed."""
            if name != "record" or "folder" not in self.__dict__:
                raise AttributeError(name)
            record, path = read_record(self.folder), self.folder / RECORD_NAME
            if self.sha256 and digest_file(path) != self.sha256:
                raise CorruptDataError("changed since it was read", where=str(path))
            self.__dict__["record"] = record
            limit_memory(self)
            return record

    @cached_property
    def batches(self) -> Arrays:
        """Return each batch field as an array [steps, batch, ...]."""
        return self._part("batches", _check_batches)

    @cached_property
    def sketches(self) -> Arrays:
        """Return the tensor sketches, `sketch`, float64 [num_taps, 64]."""
        return self._part("sketches", _check_sketches)

    @cached_property
    def rows(self) -> Arrays:
        """Return `row_id`, `text` and `label` of all read rows, sorted."""
        return self._part("rows", _check_rows)

    @cached_property
    def state(self) -> Arrays:
        """Return random generator states by key `rng/{step}`."""
        return self._part("state", _no_check)

    @cached_property
    def evaluation(self) -> Arrays:
        """Return `row_ids`, `predictions` and `logits` of the probe's (else learning run's) evaluation."""
        return self._part("evaluation", _check_evaluation)

    @cached_property
    def answers(self) -> Arrays:
        """Return `row_ids` and `right` (0 or 1) of the last evaluation."""
        return self._part("answers", _check_answers)

    @cached_property
    def capture(self) -> Arrays:
        """Return the whole tensors that an experiment captured."""
        return self._part("capture", _no_check)

    @property
    def output(self) -> str:
        """Return what the command of a captured record printed: its first and last lines."""
        path = self._path("output")
        return path.read_text(encoding="utf-8", errors="replace") if path is not None else ""

    def read_parts(self) -> None:
        """Read all arrays now; raise `CorruptDataError` for a malformed one.

        Of captured tensors, which may have gigabytes, only the header is read.
        """
        for name in ("batches", "sketches", "rows", "state", "evaluation", "answers"):
            getattr(self, name)
        path = self._path("capture")
        if path is not None:
            check_tensors(path)

    def _part(self, name: str, check: Callable[[RunRecord, Arrays], str]) -> Arrays:
        if name in self.arrays:
            content, where = self.arrays[name], f"{self.record.record_id}/{name}"
        elif (path := self._path(name)) is not None:
            content, where = _read_rows(path, self.record.spec) if name == "rows" else read_tensors(path), str(path)
        else:
            return {}
        problem = check(self.record, content)
        if problem:
            raise CorruptDataError(problem, where=where)
        return content

    def _path(self, name: str) -> Path | None:
        """Return the path of a record's file, size-checked; `None` if absent."""
        key = PART_FILES[name]
        part = next((part for part in self.record.parts if part.key == key), None)
        if part is None:
            return None
        most = max_part_bytes(self.record, name)
        if part.size > most:
            text = f"{part.size} bytes, more than the {most} that the spec explains"
            raise CorruptDataError(text, where=str(self.folder / key))
        return self.folder / key


R = TypeVar("R", bound=LoadedRecord)
_in_memory: deque[weakref.ref[LoadedRecord]] = deque()


def limit_memory(record: R) -> R:
    """Track a record on disk, evicting the oldest from memory."""
    _in_memory.append(weakref.ref(record))
    while len(_in_memory) > _MAX_IN_MEMORY:
        oldest = _in_memory.popleft()()
        if oldest is not None and oldest is not record:
            for name in vars(oldest).keys() - {"folder", "arrays", "sha256"}:
                del vars(oldest)[name]
    return record


def load_record(folder: Path | str) -> LoadedRecord:
    """Load the record in `folder`, verifying its files' digests."""
    folder = Path(folder)
    return LoadedRecord(read_record(folder), folder, sha256=digest_file(folder / RECORD_NAME))


def _read_rows(path: Path, spec: RunSpec | CapturedSpec) -> Arrays:
    """Return the columns of `rows.parquet`, after checking declared sizes."""
    try:
        data = path.read_bytes()
        if int.from_bytes(data[-8:-4], "little") > _MAX_FOOTER_BYTES:
            raise CorruptDataError("its footer is too long", where=str(path))
        file = pq.ParquetFile(pa.BufferReader(data), thrift_container_size_limit=_MAX_FOOTER_ENTRIES)
        _check_footer(file, spec, str(path))
        _check_pages(file.metadata, data, str(path))
        batches, count = [], 0
        # The footer may be wrong too: unpack no more rows than it declares.
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(_ROW_COLUMNS)):
            count += batch.num_rows
            if count > file.metadata.num_rows:
                raise CorruptDataError("contains more rows than it declares", where=str(path))
            batches.append(batch)
        table = pa.Table.from_batches(batches, _ROW_SCHEMA)
        return {name: _numbers(table.column(name)) for name in _ROW_COLUMNS}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptDataError(f"not a Parquet file of rows: {error}", where=str(path)) from error


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of 8-byte integers; `to_numpy` would import pandas, which takes half a second."""
    if column.null_count:
        raise ValueError("a row without a value")
    kind = str(column.type)
    pieces = [
        np.frombuffer(chunk.buffers()[1], kind)[chunk.offset : chunk.offset + len(chunk)] for chunk in column.chunks
    ]
    return np.concatenate([np.zeros(0, kind), *pieces])


def _check_footer(file: pq.ParquetFile, spec: RunSpec | CapturedSpec, where: str) -> None:
    """Raise `CorruptDataError` for wrong columns, or more rows than the spec allows."""
    metadata, most = file.metadata, max_rows(spec)
    if metadata.num_rows > most:
        raise CorruptDataError(f"declares {metadata.num_rows} rows, the spec reads at most {most}", where=where)
    # A column of lists would contain any number of values in one row.
    if not file.schema_arrow.remove_metadata().equals(_ROW_SCHEMA):
        raise CorruptDataError(f"its columns differ from {', '.join(_ROW_COLUMNS)}", where=where)
    groups = [metadata.row_group(index) for index in range(min(metadata.num_row_groups, _MAX_ROW_GROUPS + 1))]
    if len(groups) > _MAX_ROW_GROUPS or sum(group.num_rows for group in groups) != metadata.num_rows:
        raise CorruptDataError("its row groups do not match its number of rows", where=where)


def _check_pages(metadata: pq.FileMetaData, data: bytes, where: str) -> None:
    """Raise `CorruptDataError` if Parquet pages unpack to implausibly many bytes."""
    unpacked = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        for column in (group.column(place) for place in range(group.num_columns)):
            # The reader's own rule: a dictionary page counts only before the data.
            first, dictionary = column.data_page_offset, column.dictionary_page_offset
            start = dictionary if dictionary and 0 < dictionary < first else first
            unpacked += unpacked_bytes(data, start, start + column.total_compressed_size)
    most = MAX_ROW_BYTES * metadata.num_rows + _MAX_PAGE_OVERHEAD * metadata.num_row_groups
    if unpacked > most:
        raise CorruptDataError(f"unpacks to {unpacked} bytes for {metadata.num_rows} rows", where=where)


def _no_check(_record: RunRecord, _content: Arrays) -> str:
    return ""


def _check_batches(record: RunRecord, content: Arrays) -> str:
    """Return the problem of batch arrays with wrong dimensions, or "".

    Rows and length may differ from the spec's: the judge names the cause.
    """
    steps = record.evidence.probe.num_steps if record.evidence.probe else 0
    rows = next((array.shape[1] for array in content.values() if array.ndim > 1), 0)
    length = next((array.shape[2] for name, array in content.items() if name in _TOKENS and array.ndim > 2), 0)
    flat = {"row_ids"} | ({"labels"} if record.spec.has_row_labels else set())
    for name, array in content.items():
        if name not in BATCH_FIELDS:
            return f"contains {name!r}, which is not a field of a batch"
        if array.dtype.kind not in "iu" or array.ndim != (2 if name in flat else 3):
            return f"{name} is {array.dtype.name}{list(array.shape)}, expected integers by step and row"
        if array.shape[0] != steps:
            return f"{name} has {array.shape[0]} steps, the probe {steps}"
        if array.shape != ((steps, rows) if name in flat else (steps, rows, length)):
            return f"{name} has the shape {list(array.shape)}, other fields have {rows} rows of length {length}"
    return ""


_TOKENS = ("input_ids", "attention_mask", "token_type_ids")


def _check_sketches(record: RunRecord, content: Arrays) -> str:
    taps = len(record.evidence.probe.taps) if record.evidence.probe else 0
    sketch = content.get("sketch")
    if sketch is None or sketch.shape != (taps, SKETCH_SIZE) or sketch.dtype != np.float64:
        return f"does not contain float64 sketches of {taps} taps"
    return ""


def _check_rows(_record: RunRecord, content: Arrays) -> str:
    row_ids = content.get("row_id")
    if row_ids is None or set(content) != set(_ROW_COLUMNS):
        return f"its columns differ from {', '.join(_ROW_COLUMNS)}"
    for name, kind in _ROW_COLUMNS.items():
        if content[name].dtype.name != kind or content[name].shape != row_ids.shape:
            return f"column {name} is not {kind} throughout"
    if not _increasing(row_ids):
        return "its rows are not in the order of row_id"
    return ""


def _check_evaluation(_record: RunRecord, content: Arrays) -> str:
    lengths: dict[str, Any] = {name: array.shape[:1] for name, array in content.items()}
    if len(set(lengths.values())) > 1:
        return f"contains arrays of different lengths: {lengths}"
    return ""


def _check_answers(record: RunRecord, content: Arrays) -> str:
    row_ids, right = content.get("row_ids"), content.get("right")
    if row_ids is None or right is None or set(content) != {"row_ids", "right"}:
        return "its arrays are not row_ids and right"
    if row_ids.dtype != np.int64 or right.dtype != np.uint8 or row_ids.ndim != 1 or row_ids.shape != right.shape:
        return "row_ids is not int64, right not uint8, or their lengths differ"
    if right.size and right.max() > 1:
        return "right contains values other than 0 and 1"
    learn = record.evidence.learn
    if not learn or not learn.evaluations or learn.evaluations[-1].num_rows != len(right):
        return "its rows are not those of the last evaluation"
    return ""


def _increasing(values: NDArray[Any]) -> bool:
    return values.ndim == 1 and bool((values[1:] > values[:-1]).all())
