"""A user's own rows: CSV, JSONL, Parquet, or a dataset of the Hugging Face hub, each row checked as it enters."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.data.rows import MAX_TEXT_CHARS, Row, checked_row
from plumbline.errors import ConfigurationError, InvalidInputError

__all__ = ["Columns", "read_rows"]

_MAX_LINE_BYTES = 8 * MAX_TEXT_CHARS
_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 512
_ESCAPED = re.compile("[\udc80-\udcff]")
"""What `surrogateescape` makes of a byte that is no UTF-8; UTF-8 itself holds none of these."""
_SUFFIXES = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a row's text and label stand."""

    text: str
    label: str
    labelled: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that have to be there."""
        return (self.text, self.label) if self.labelled else (self.text,)


def read_rows(source: Path, columns: Columns) -> Iterator[Row]:
    """The rows of a file, in its order; the first bad one raises `InvalidInputError` with file, row and column."""
    readers = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
    reader = readers.get(source.suffix.lower())
    if reader is None:
        mend = f"give a file that ends in {', '.join(_SUFFIXES)}"
        raise ConfigurationError("is of no kind that can be imported", where=str(source), key="path", mend=mend)
    if not source.is_file():
        raise ConfigurationError("no such file", where=str(source), key="path")
    if source.stat().st_size == 0:
        raise InvalidInputError("the file is empty", where=str(source))
    for place, values in reader(source, columns):
        yield checked_row(
            values.get(columns.text),
            values.get(columns.label),
            labelled=columns.labelled,
            where=f"{source}, {place}",
            text_key=columns.text,
            label_key=columns.label,
        )


def _check_columns(source: Path, found: list[str], columns: Columns) -> None:
    for name in columns.names:
        if name not in found:
            seen = ", ".join(found[:12]) or "none"
            mend = "name the columns with --text-column and --label-column"
            raise InvalidInputError(f"there is no such column (found: {seen})", where=str(source), key=name, mend=mend)


def _csv(source: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(_MAX_LINE_BYTES)
    with source.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            _check_columns(source, list(reader.fieldnames or ()), columns)
            for values in reader:
                place = f"line {reader.line_num}"
                if None in values:
                    raise InvalidInputError(
                        "has more fields than the header", where=f"{source}, {place}", mend="quote texts with commas"
                    )
                yield place, values
        except UnicodeDecodeError as error:
            where = f"{source}, line {_line_of_bad_byte(source)}"
            what = f"not CSV in UTF-8: the byte 0x{error.object[error.start]:02x} ({error.reason})"
            raise InvalidInputError(what, where=where, mend="save it as UTF-8") from error
        except csv.Error as error:
            where = f"{source}, line {reader.line_num + 1}"
            raise InvalidInputError(f"not CSV in UTF-8: {error}", where=where) from error


def _line_of_bad_byte(source: Path) -> int:
    """Where the first byte stands that is no UTF-8: the reader itself decodes far ahead of the line that it is at."""
    number = 1
    with source.open(encoding="utf-8-sig", newline="", errors="surrogateescape") as file:
        while (piece := file.readline(_MAX_LINE_BYTES)) and not _ESCAPED.search(piece):
            number += piece.endswith(("\n", "\r"))
    return number


def _jsonl(source: Path, _columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with source.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            place = f"line {number}"
            if len(line) > _MAX_LINE_BYTES:
                raise InvalidInputError(f"longer than {_MAX_LINE_BYTES:,} bytes", where=f"{source}, {place}")
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                # Also what is JSON, and yet a number of more digits or a nest of more levels than Python reads.
                raise InvalidInputError("not JSON", where=f"{source}, {place}") from error
            if not isinstance(values, dict):
                raise InvalidInputError("is no JSON object", where=f"{source}, {place}")
            yield place, values


def _parquet(source: Path, columns: Columns) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # A buffer, or else whole columns of a row group are read at once, and one group may be the whole file.
        with pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            _check_columns(source, list(file.schema_arrow.names), columns)
            number = 0
            for batch in file.iter_batches(columns=list(columns.names), batch_size=_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield f"row {number}", values
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"not Parquet: {str(error)[:120]}", where=str(source)) from error
