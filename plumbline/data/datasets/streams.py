"""Byte streams of users' files, decompressed, and the dialect of delimited text.

`csv.Sniffer` is not used: it guesses from letter frequencies, takes `;` inside texts for the delimiter, and reports
`doublequote=False` for files whose sample has no escaped quote. Here a delimiter counts only if every record of the
sample has as many fields as the header.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from plumbline.data.datasets.rows import ColumnOptions
from plumbline.schema.errors import InvalidInputError

if TYPE_CHECKING:
    from _csv import Reader

BUFFER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_FOREIGN = {b"PK\x03\x04": "a ZIP archive", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "a 7z archive"}


def compression(source: Path, where: str) -> str:
    """Return the compression by the file's first bytes."""
    with source.open("rb") as file:
        start = file.read(8)
    for magic, description in _FOREIGN.items():
        if start.startswith(magic):
            raise InvalidInputError(f"is {description}", where=where, hint="unpack it, or compress with gzip or zstd")
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


@contextmanager
def opened(source: Path, where: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed. Raise if the stream is damaged."""
    import pyarrow as pa

    name = compression(source, where)
    if not name:
        with source.open("rb") as plain:
            yield plain
        return
    try:
        with pa.input_stream(str(source), compression=name, buffer_size=BUFFER_BYTES) as stream:
            yield stream
    except (pa.ArrowException, OSError, EOFError) as error:
        text = f"the {name} stream is damaged or cut off: {str(error)[:120]}"
        raise InvalidInputError(text, where=where, hint="compress or download it again") from error


SAMPLE_CHARS = 1 << 16
_DELIMITERS = (",", ";", "\t", "|")
_MOST_RECORDS = 200


@dataclass(frozen=True, slots=True)
class Dialect:
    """Delimiter and quoting, as arguments of `csv.reader`."""

    delimiter: str
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    """`csv.QUOTE_MINIMAL` or `csv.QUOTE_NONE`."""

    def records(self, lines: Iterable[str]) -> Reader:
        """Return a strict reader of the fields of each record."""
        return csv.reader(lines, strict=True, delimiter=self.delimiter, quoting=self.quoting)

    def described(self, encoding: str, *, header: bool) -> str:
        """Return how a file is read, for its receipt."""
        encoding = "UTF-16" if encoding == "utf-16" else "UTF-8"
        quotes = "quotes enclose texts" if self.quoting == csv.QUOTE_MINIMAL else "quotes belong to the text"
        return f"{encoding}, delimiter {self.delimiter!r}, {quotes}, {'a header' if header else 'no header'}"


def encoding_of(start: bytes) -> str:
    """Return the encoding of a byte order mark; UTF-8 without any."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def sniff(sample: str, options: ColumnOptions, where: str) -> Dialect:
    """Return the dialect of a file that starts with `sample`. Raise if ambiguous."""
    dialects = [*(Dialect(delimiter) for delimiter in _DELIMITERS), Dialect("\t", csv.QUOTE_NONE)]
    records = {dialect: _records(sample, dialect) for dialect in dialects}
    several = [dialect for dialect in dialects if records[dialect] and len(records[dialect][0]) > 1]
    if not several:
        return Dialect(",")
    regular = [dialect for dialect in several if len({len(record) for record in records[dialect]}) == 1]
    fitting = [dialect for dialect in several if _resolves(options.names(records[dialect][0]), options)]
    best = [dialect for dialect in fitting if dialect in regular] or fitting or regular or several
    delimiters = sorted({dialect.delimiter for dialect in best})
    if len(delimiters) > 1 and best[0] in fitting:
        text = f"the delimiter could be any of {' '.join(map(repr, delimiters))}"
        raise InvalidInputError(text, where=where, hint="name the columns, or convert the file to JSONL or Parquet")
    return best[0]


def _records(sample: str, dialect: Dialect) -> list[list[str]]:
    """Return the sample's complete records; empty if not CSV."""
    records: list[list[str]] = []
    lines = list(io.StringIO(sample, newline=""))
    is_cut = len(sample) >= SAMPLE_CHARS
    reader = dialect.records(lines)
    try:
        for record in reader:
            if len(records) == _MOST_RECORDS:
                return records
            if record:
                records.append(record)
    except csv.Error:
        return records if is_cut and reader.line_num >= len(lines) else []
    return records[:-1] if is_cut else records


def _resolves(header: list[str], options: ColumnOptions) -> bool:
    try:
        options.resolve(header, "")
    except InvalidInputError:
        return False
    return True
