"""Record with arrays that are read and checked on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plumbline.errors import CorruptDataError
from plumbline.records.tensors import Arrays, read_tensors
from plumbline.schema.evidence import BATCH_FIELDS, SKETCH_SIZE
from plumbline.schema.record import RunRecord, read_record
from plumbline.schema.spec import RunSpec

__all__ = ["LoadedRecord", "load_record"]

_MAX_PART_BYTES = 4 << 30
_MAX_ROWS = 64_000_000
_MAX_ROW_BYTES = 64
"""Maximum bytes of one row of three integers, in the least favourable encoding."""
_MAX_ROW_GROUPS = 4096
_MAX_FOOTER_BYTES = 1 << 20
_ROWS_AT_ONCE = 1 << 16
_ROW_COLUMNS = {"row_id": "int64", "text": "uint64", "label": "uint64"}


@dataclass(frozen=True)
class LoadedRecord:
    """One record; `arrays` replaces the folder's parts for a record in memory."""

    record: RunRecord
    folder: Path
    arrays: dict[str, Arrays] = field(default_factory=dict)

    @cached_property
    def batches(self) -> Arrays:
        """Return each batch field as [steps, batch, ...]."""
        return self._part("batches", _check_batches)

    @cached_property
    def sketches(self) -> Arrays:
        """Return `sketch`, float64 [num_taps, 64]."""
        return self._part("sketches", _check_sketches)

    @cached_property
    def rows(self) -> Arrays:
        """Return `row_id`, `text` and `label` of each row read, ordered by `row_id`."""
        return self._part("rows", _check_rows)

    @cached_property
    def state(self) -> Arrays:
        """Return the generators' states by key `rng/{step}`."""
        return self._part("state", _no_check)

    @cached_property
    def evaluation(self) -> Arrays:
        """Return `row_ids`, `predictions` and `logits` of the probe's evaluation, else of the learn part's last."""
        return self._part("evaluation", _check_evaluation)

    @cached_property
    def answers(self) -> Arrays:
        """Return `row_ids` and `right` (0 or 1) of the learn part's last evaluation; may be empty."""
        return self._part("answers", _check_answers)

    @cached_property
    def capture(self) -> Arrays:
        """Return the whole tensors that an experiment captured."""
        return self._part("capture", _no_check)

    def _part(self, name: str, check: Callable[[RunRecord, Arrays], str]) -> Arrays:
        if name in self.arrays:
            content = self.arrays[name]
            where = f"{self.record.record_id}/{name}"
        else:
            suffix = "parquet" if name == "rows" else "safetensors"
            key = f"{name}.{suffix}"
            part = next((part for part in self.record.parts if part.key == key), None)
            if part is None:
                return {}
            where = str(self.folder / key)
            if part.size > _MAX_PART_BYTES:
                raise CorruptDataError(f"{part.size} bytes, more than the {_MAX_PART_BYTES} allowed", where=where)
            content = (
                _read_rows(self.folder / key, self.record.spec) if name == "rows" else read_tensors(self.folder / key)
            )
        problem = check(self.record, content)
        if problem:
            raise CorruptDataError(problem, where=where)
        return content


def load_record(folder: Path) -> LoadedRecord:
    """Return the record in `folder`, its parts verified against their digests."""
    return LoadedRecord(record=read_record(folder), folder=folder)


def _read_rows(path: Path, spec: RunSpec) -> Arrays:
    """Return the columns of `rows.parquet`, after checks of the declared sizes."""
    try:
        file = pq.ParquetFile(path)
        _check_footer(file.metadata, spec, str(path))
        batches, count = [], 0
        # The footer may be wrong too: unpack no more rows than it declares.
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(_ROW_COLUMNS)):
            count += batch.num_rows
            if count > file.metadata.num_rows:
                raise CorruptDataError("contains more rows than it declares", where=str(path))
            batches.append(batch)
        table = pa.Table.from_batches(batches, file.schema_arrow.empty_table().select(list(_ROW_COLUMNS)).schema)
        return {name: table.column(name).to_numpy() for name in _ROW_COLUMNS}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptDataError(f"not a Parquet file of rows: {error}", where=str(path)) from error


def _check_footer(metadata: pq.FileMetaData, spec: RunSpec, where: str) -> None:
    """Raise `CorruptDataError` for more rows or bytes than the spec allows."""
    steps = max((part.steps for part in (spec.probe, spec.speed, spec.learn) if part), default=0)
    evaluated = max((part.evaluation_rows for part in (spec.probe, spec.learn) if part), default=0)
    most = min(steps * spec.batch_size + evaluated, _MAX_ROWS)
    if metadata.num_rows > most:
        raise CorruptDataError(f"declares {metadata.num_rows} rows, the spec reads at most {most}", where=where)
    groups = [metadata.row_group(index) for index in range(min(metadata.num_row_groups, _MAX_ROW_GROUPS + 1))]
    unpacked = sum(group.total_byte_size for group in groups)
    if len(groups) > _MAX_ROW_GROUPS or sum(group.num_rows for group in groups) != metadata.num_rows:
        raise CorruptDataError("its row groups do not match its number of rows", where=where)
    if unpacked > _MAX_ROW_BYTES * metadata.num_rows + _MAX_FOOTER_BYTES * len(groups):
        raise CorruptDataError(f"unpacks to {unpacked} bytes for {metadata.num_rows} rows", where=where)


def _no_check(_record: RunRecord, _content: Arrays) -> str:
    return ""


def _check_batches(record: RunRecord, content: Arrays) -> str:
    steps = len(record.evidence.probe.steps) if record.evidence.probe else 0
    for name, array in content.items():
        if name not in BATCH_FIELDS:
            return f"contains {name!r}, which is not a field of a batch"
        if array.dtype.kind not in "iu" or array.ndim < 2:
            return f"{name} is {array.dtype.name}{list(array.shape)}, expected integers by step and row"
        if array.shape[0] != steps:
            return f"{name} has {array.shape[0]} steps, the probe {steps}"
    return ""


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
    last = learn.evaluations[-1] if learn and learn.evaluations else None
    if last is None or last.num_rows != len(right) or last.accuracy != int(right.sum()) / max(len(right), 1):
        return "its correct rows do not give the accuracy of the last evaluation"
    return ""


def _increasing(values: NDArray[Any]) -> bool:
    return values.ndim == 1 and bool((values[1:] > values[:-1]).all())
