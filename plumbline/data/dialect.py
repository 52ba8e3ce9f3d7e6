"""Dialect of a delimited text file: encoding by byte order mark, delimiter by first records.

`csv.Sniffer` is not used: it guesses from letter frequencies, takes `;` inside texts for the delimiter, and reports
`doublequote=False` for files whose sample has no escaped quote. Here a delimiter counts only if every record of the
sample has as many fields as the header.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plumbline.data.columns import ColumnOptions
from plumbline.errors import InvalidInputError

if TYPE_CHECKING:
    from _csv import Reader

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
    """Return the dialect of a file that starts with `sample`; raise if ambiguous."""
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
