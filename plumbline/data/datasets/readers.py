"""Reader of users' data files, validating each row."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from plumbline.data.datasets.delimited import read_delimited
from plumbline.data.datasets.receipts import Reading
from plumbline.data.datasets.rows import ColumnOptions, Columns, RawRow, checked_row, declared_name
from plumbline.data.datasets.streams import BUFFER_BYTES, COMPRESSIONS, compression, opened
from plumbline.schema.delimited import MAX_LINE_BYTES, Place, data_of
from plumbline.schema.errors import ConfigurationError, InvalidInputError

_MAX_DOCUMENT_BYTES = 256 << 20
_BATCH_ROWS = 512
_SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip

_Values = Iterator[tuple[Place, Mapping[str, Any]]]


def format_of(name: str) -> str:
    """Return `csv`, `jsonl`, `json` or `parquet` by file name, or ""."""
    return _SUFFIXES.get(PurePosixPath(uncompressed(name).lower()).suffix, "")


def uncompressed(name: str) -> str:
    """Return a file name without its compression suffix."""
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in COMPRESSIONS else name


def read_rows(
    source: Path, options: ColumnOptions, where: str = "", reading: Reading | None = None, *, may_be_empty: bool = False
) -> Iterator[RawRow]:
    """Yield a file's rows; raise `InvalidInputError` with file, row and column."""
    where, reading = where or str(source), reading or Reading()
    kind = format_of(source.name)
    if not kind:
        hint = f"CSV, TSV, JSON, JSONL or Parquet: a name ending in {', '.join(_SUFFIXES)}, perhaps with .gz or .zst"
        raise ConfigurationError("unsupported file type", where=where, key="path", hint=hint)
    if not options.header and kind != "csv":
        text = "is set to no header, which only CSV and TSV may lack"
        raise ConfigurationError(text, where=where, key="header")
    if not source.is_file():
        raise ConfigurationError("no such file", where=where, key="path")
    is_empty = source.stat().st_size == 0
    readers = {"csv": read_delimited, "jsonl": _jsonl, "json": _json, "parquet": _parquet}
    columns: Columns | None = None
    for place, values in () if is_empty else readers[kind](source, options, where, reading):
        if columns is None:
            columns = options.resolve([str(name) for name in values], where)
            reading.add_columns(columns)
            reading.files += 1
        reading.rows += 1
        yield checked_row(values, columns, place)
    if columns is None and not may_be_empty:
        raise InvalidInputError("the file is empty" if is_empty else "contains no row", where=where)
    if columns is None:
        reading.empty.append(where)


def _jsonl(source: Path, _options: ColumnOptions, where: str, reading: Reading) -> _Values:
    with opened(source, where) as raw, io.BufferedReader(raw, BUFFER_BYTES) as file:  # type: ignore[type-var]
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            place = Place(where, "line", number)
            if len(line) > MAX_LINE_BYTES:
                raise InvalidInputError(f"longer than {MAX_LINE_BYTES:,} bytes", where=str(place))
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            yield place, _object(_parsed(line, str(place)), str(place))
        reading.add_text("JSON lines", number)


def _parsed(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        # Also valid JSON with more digits or nesting levels than Python reads.
        raise InvalidInputError("not JSON", where=where) from error


def _object(values: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise InvalidInputError("is not a JSON object", where=where)
    return values


def _json(source: Path, options: ColumnOptions, where: str, reading: Reading) -> _Values:
    """Yield the rows of a JSON array or JSON Lines file."""
    with opened(source, where) as raw:
        first = raw.read(MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"{") and _is_object(first.splitlines()[0]) and b"\n" in first.strip():
        yield from _jsonl(source, options, where, reading)
        return
    with opened(source, where) as raw:
        data = raw.read(_MAX_DOCUMENT_BYTES + 1)
    if len(data) > _MAX_DOCUMENT_BYTES:
        text = f"one JSON document of more than {_MAX_DOCUMENT_BYTES >> 20} MiB"
        raise InvalidInputError(text, where=where, hint="convert it to JSONL or Parquet")
    document = data_of(_parsed(data, where), where)
    if not isinstance(document, list):
        hint = "an array of objects, such as pandas writes with orient='records'"
        raise InvalidInputError("is not a JSON array", where=where, hint=hint)
    yield from _objects(document, where)
    reading.add_text("a JSON array", len(document))


def _objects(document: Iterable[Any], where: str) -> _Values:
    for number, values in enumerate(document, start=1):
        place = Place(where, "row", number)
        yield place, _object(values, str(place))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _declared_classes(metadata: Mapping[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Return the label classes declared in a Parquet file by `datasets`."""
    try:
        features = json.loads((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return tuple(map(str, features[label].get("names") or ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ()


def _parquet(source: Path, options: ColumnOptions, where: str, reading: Reading) -> _Values:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name := compression(source, where):
        hint = "Parquet compresses its own columns: decompress the file"
        raise InvalidInputError(f"a Parquet file inside {name}", where=where, hint=hint)
    try:
        # Without a buffer, whole columns of a row group are read at once, and a group may be the whole file.
        with pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            columns = options.resolve(list(file.schema_arrow.names), where)
            names, classes = list(columns.names), _declared_classes(file.schema_arrow.metadata, columns.label)
            number = 0
            for batch in file.iter_batches(columns=names, batch_size=_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    place = Place(where, "row", number)
                    if classes and columns.label is not None:
                        values[columns.label] = declared_name(values[columns.label], classes, str(place), columns.label)
                    yield place, values
            reading.add_text("Parquet", number)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"not Parquet: {str(error)[:120]}", where=where) from error
