"""Reader of users' data files, with checks of each row."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from plumbline.data.columns import ColumnOptions, Columns
from plumbline.data.dialect import SAMPLE_CHARS, Dialect, encoding_of, sniff
from plumbline.data.rows import MAX_TEXT_CHARS, Place, RawRow, checked_row
from plumbline.errors import ConfigurationError, InvalidInputError

__all__ = ["COMPRESSIONS", "SUFFIXES", "format_of", "read_rows"]

_MAX_LINE_BYTES = 8 * MAX_TEXT_CHARS
_MAX_DOCUMENT_BYTES = 256 << 20
_BUFFER_BYTES = 1 << 20
_BATCH_ROWS = 512
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Characters that `surrogateescape` produces from bytes that are not UTF-8."""
SUFFIXES = {
    ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_FOREIGN = {b"PK\x03\x04": "a ZIP archive", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "a 7z archive"}

_Values = Iterator[tuple[Place, Mapping[str, Any]]]


def format_of(name: str) -> str:
    """Return `csv`, `jsonl`, `json` or `parquet` by a file's name; "" if unknown."""
    path = Path(name.lower())
    if path.suffix in COMPRESSIONS:
        path = path.with_suffix("")
    return SUFFIXES.get(path.suffix, "")


def read_rows(source: Path, options: ColumnOptions, where: str = "") -> Iterator[RawRow]:
    """Yield a file's rows; raise `InvalidInputError` with file, row and column."""
    where = where or str(source)
    kind = format_of(source.name)
    if not kind:
        hint = f"CSV, TSV, JSON, JSONL or Parquet: a name ending in {', '.join(SUFFIXES)}, perhaps with .gz or .zst"
        raise ConfigurationError("unsupported file type", where=where, key="path", hint=hint)
    if not source.is_file():
        raise ConfigurationError("no such file", where=where, key="path")
    if source.stat().st_size == 0:
        raise InvalidInputError("the file is empty", where=where)
    readers = {"csv": _csv, "jsonl": _jsonl, "json": _json, "parquet": _parquet}
    columns: Columns | None = None
    for place, values in readers[kind](source, options, where):
        if columns is None:
            columns = options.resolve([str(name) for name in values], where)
        yield checked_row(values, columns, place)
    if columns is None:
        raise InvalidInputError("contains no row", where=where)


def _compression(source: Path, where: str) -> str:
    """Return the compression by the file's first bytes."""
    with source.open("rb") as file:
        start = file.read(8)
    for magic, description in _FOREIGN.items():
        if start.startswith(magic):
            raise InvalidInputError(f"is {description}", where=where, hint="unpack it, or compress with gzip or zstd")
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


@contextmanager
def _opened(source: Path, where: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed; raise if the stream is damaged."""
    import pyarrow as pa

    name = _compression(source, where)
    if not name:
        with source.open("rb") as plain:
            yield plain
        return
    try:
        with pa.input_stream(str(source), compression=name, buffer_size=_BUFFER_BYTES) as stream:
            yield stream
    except (pa.ArrowException, OSError, EOFError) as error:
        text = f"the {name} stream is damaged or cut off: {str(error)[:120]}"
        raise InvalidInputError(text, where=where, hint="compress or download it again") from error


def _csv(source: Path, options: ColumnOptions, where: str) -> _Values:
    csv.field_size_limit(_MAX_LINE_BYTES)
    with _opened(source, where) as raw:
        encoding = encoding_of(raw.read(4))
    try:
        with _opened(source, where) as raw, _as_text(raw, encoding) as file:
            dialect = sniff(file.read(SAMPLE_CHARS), options, where)
        with _opened(source, where) as raw, _as_text(raw, encoding) as file:
            yield from _records(file, dialect, where)
    except UnicodeError as error:
        raise _not_unicode(source, where, encoding, error) from error


def _as_text(raw: BinaryIO, encoding: str, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="")


def _records(file: io.TextIOWrapper, dialect: Dialect, where: str) -> _Values:
    reader = csv.reader(file, strict=True, delimiter=dialect.delimiter, quoting=dialect.quoting)
    header: list[str] = []
    try:
        line = 1
        for record in reader:
            first, line = line, reader.line_num + 1
            if not record or not header:
                header = header or record
                continue
            place = Place(where, "line", first)
            if len(record) != len(header):
                more = "more" if len(record) > len(header) else "fewer"
                problem, hint = f"has {more} fields than the header", "quote texts that contain the delimiter"
                raise InvalidInputError(problem, where=str(place), hint=hint)
            yield place, _Fields(header, record)
    except csv.Error as error:
        raise InvalidInputError(f"not CSV in UTF-8: {error}", where=f"{where}, line {reader.line_num + 1}") from error


class _Fields(dict[str, str]):
    """Fields of a record; iteration includes repeated names of the header."""

    def __init__(self, header: list[str], record: list[str]) -> None:
        super().__init__(zip(header, record, strict=True))
        self._header = header

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)


def _not_unicode(source: Path, where: str, encoding: str, error: UnicodeError) -> InvalidInputError:
    if encoding != "utf-8-sig" or not isinstance(error, UnicodeDecodeError):
        return InvalidInputError(f"not text in {encoding}: {str(error)[:100]}", where=where, hint="save it as UTF-8")
    line = _line_of_bad_byte(source, where)
    text = f"not CSV in UTF-8: the byte 0x{error.object[error.start]:02x} ({error.reason})"
    return InvalidInputError(text, where=f"{where}, line {line}", hint="save it as UTF-8")


def _line_of_bad_byte(source: Path, where: str) -> int:
    """Return the line of the first byte that is not UTF-8."""
    number = 1
    with _opened(source, where) as raw, _as_text(raw, "utf-8-sig", "surrogateescape") as file:
        while (piece := file.readline(_MAX_LINE_BYTES)) and not _ESCAPED.search(piece):
            number += piece.endswith(("\n", "\r"))
    return number


def _jsonl(source: Path, _options: ColumnOptions, where: str) -> _Values:
    with _opened(source, where) as raw, io.BufferedReader(raw, _BUFFER_BYTES) as file:  # type: ignore[type-var]
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            place = Place(where, "line", number)
            if len(line) > _MAX_LINE_BYTES:
                raise InvalidInputError(f"longer than {_MAX_LINE_BYTES:,} bytes", where=str(place))
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            yield place, _object(_parsed(line, str(place)), str(place))


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


def _json(source: Path, options: ColumnOptions, where: str) -> _Values:
    """Yield the rows of a JSON array, or of JSON lines."""
    with _opened(source, where) as raw:
        first = raw.read(_MAX_LINE_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"{") and _is_object(first.splitlines()[0]) and b"\n" in first.strip():
        yield from _jsonl(source, options, where)
        return
    with _opened(source, where) as raw:
        data = raw.read(_MAX_DOCUMENT_BYTES + 1)
    if len(data) > _MAX_DOCUMENT_BYTES:
        text = f"one JSON document of more than {_MAX_DOCUMENT_BYTES >> 20} MiB"
        raise InvalidInputError(text, where=where, hint="convert it to JSONL or Parquet")
    document = _parsed(data, where)
    if isinstance(document, dict) and isinstance(document.get("data"), list):
        document = document["data"]
    if not isinstance(document, list):
        hint = "an array of objects, such as pandas writes with orient='records'"
        raise InvalidInputError("is not a JSON array", where=where, hint=hint)
    yield from _objects(document, where)


def _objects(document: Iterable[Any], where: str) -> _Values:
    for number, values in enumerate(document, start=1):
        place = Place(where, "row", number)
        yield place, _object(values, str(place))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parquet(source: Path, options: ColumnOptions, where: str) -> _Values:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if name := _compression(source, where):
        hint = "Parquet compresses its own columns: decompress the file"
        raise InvalidInputError(f"a Parquet file inside {name}", where=where, hint=hint)
    try:
        # Without a buffer, whole columns of a row group are read at once, and a group may be the whole file.
        with pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
            names = list(options.resolve(list(file.schema_arrow.names), where).names)
            number = 0
            for batch in file.iter_batches(columns=names, batch_size=_BATCH_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Place(where, "row", number), values
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"not Parquet: {str(error)[:120]}", where=where) from error
