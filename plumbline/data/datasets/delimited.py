"""Reader of delimited text: each line becomes part of exactly one row, or is refused."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from plumbline.data.datasets.receipts import Reading
from plumbline.data.datasets.rows import MAX_TEXT_CHARS, ColumnOptions, Place
from plumbline.data.datasets.streams import SAMPLE_CHARS, Dialect, encoding_of, opened, sniff
from plumbline.schema.errors import InvalidInputError

MAX_LINE_BYTES = 8 * MAX_TEXT_CHARS
_ESCAPED = re.compile("[\udc80-\udcff]")
"""Characters that `surrogateescape` produces from bytes that are not UTF-8."""


def read_delimited(
    source: Path, options: ColumnOptions, where: str, reading: Reading
) -> Iterator[tuple[Place, Mapping[str, str]]]:
    """Yield the place and the fields of each row."""
    csv.field_size_limit(MAX_LINE_BYTES)
    with opened(source, where) as raw:
        encoding = encoding_of(raw.read(4))
    try:
        with opened(source, where) as raw, _as_text(raw, encoding) as file:
            dialect = sniff(file.read(SAMPLE_CHARS), options, where)
        if dialect.delimiter == "\t":
            dialect = _tab_dialect(source, encoding, where) or dialect
        with opened(source, where) as raw, _as_text(raw, encoding) as file:
            records = _Records(file, dialect, options, where)
            yield from records
        reading.add_text(dialect.described(encoding, header=options.header), records.num_lines)
        reading.add_spans(records.num_spans, records.first_span)
    except UnicodeError as error:
        raise _not_unicode(source, where, encoding, error) from error


def _as_text(raw: BinaryIO, encoding: str, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="")


def _tab_dialect(source: Path, encoding: str, where: str) -> Dialect | None:
    """Return the quoting under which the whole file is regular, with the most records.

    A text may begin with a lone quote. Read as a quoted text, it would swallow the lines up to the next quote.
    """
    best, most = None, 0
    for dialect in (Dialect("\t"), Dialect("\t", csv.QUOTE_NONE)):
        with opened(source, where) as raw, _as_text(raw, encoding) as file:
            count = _num_records(_lines(file, where), dialect)
        if count > most:
            best, most = dialect, count
    return best


def _lines(file: io.TextIOWrapper, where: str) -> Iterator[str]:
    """Yield the lines. Raise for a line that is too long, unread."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            place = Place(where, "line", number)
            raise InvalidInputError(f"longer than {MAX_LINE_BYTES:,} characters", where=str(place))
        yield line


def _num_records(lines: Iterator[str], dialect: Dialect) -> int:
    """Return the number of records; 0 if they differ in their number of fields."""
    count, width = 0, 0
    try:
        for record in dialect.records(lines):
            if record:
                count, width = count + 1, width or len(record)
                if len(record) != width:
                    return 0
    except csv.Error:
        return 0
    return count


class _Records:
    """Rows of a delimited file. Afterwards, its number of lines and the rows of several lines."""

    def __init__(self, file: io.TextIOWrapper, dialect: Dialect, options: ColumnOptions, where: str) -> None:
        self.num_lines = 0
        self.num_spans = 0
        self.first_span: Place | None = None
        self._dialect = dialect
        self._options = options
        self._where = where
        self._lines: list[str] = []
        self._reader = dialect.records(self._kept(file))

    def __iter__(self) -> Iterator[tuple[Place, Mapping[str, str]]]:
        header: list[str] = []
        guard: _SwallowedRows | None = None
        for place, record in self._records():
            if guard is None:
                header = self._options.names(record)
                guard = _SwallowedRows(header, self._dialect, self._options, self._where)
                if self._options.header:
                    continue
            _check_record(record, header, place, self._options)
            if len(self._lines) > 1:
                self.num_spans += 1
                self.first_span = self.first_span or place
            guard.see(place, record, self._lines)
            yield place, _Fields(header, record)
        if guard is not None:
            guard.check()

    def _kept(self, file: io.TextIOWrapper) -> Iterator[str]:
        for line in _lines(file, self._where):
            self._lines.append(line)
            yield line

    def _records(self) -> Iterator[tuple[Place, list[str]]]:
        """Yield each record that is no blank line, and the place of its first line."""
        try:
            for record in self._reader:
                place = Place(self._where, "line", self.num_lines + 1)
                self.num_lines = self._reader.line_num
                if record:
                    yield place, record
                self._lines.clear()
        except csv.Error as error:
            place = Place(self._where, "line", self.num_lines + 1)
            raise InvalidInputError(f"not CSV in UTF-8: {error}", where=str(place)) from error


def _check_record(record: list[str], header: list[str], place: Place, options: ColumnOptions) -> None:
    if len(record) != len(header):
        more = "more" if len(record) > len(header) else "fewer"
        problem, hint = f"has {more} fields than the header", "quote texts that contain the delimiter"
        raise InvalidInputError(problem, where=str(place), hint=hint)
    names = {name.strip("\ufeff ") for name in record}
    if options.header and len(header) > 1 and names == {name.strip("\ufeff ") for name in header}:
        hint = "remove the line; several files are read as a folder or a glob, such as FOLDER/*.csv"
        raise InvalidInputError("repeats the header", where=str(place), hint=hint)


class _SwallowedRows:
    """Search for rows that a lone quote joined into one.

    A record of several lines is suspicious if each line by itself has all fields, and one of them, beside the line
    with the record's own label, a label of the file.
    """

    def __init__(self, header: list[str], dialect: Dialect, options: ColumnOptions, where: str) -> None:
        self._width = len(header)
        label = options.resolve(header, where).label
        self._label = None if label is None else header.index(label)
        self._plain = Dialect(dialect.delimiter, csv.QUOTE_NONE)
        self._known: set[str] = set()
        self._suspects: list[tuple[Place, int, frozenset[str]]] = []

    def see(self, place: Place, record: list[str], lines: list[str]) -> None:
        """Count the label of a record, or mark the record as suspicious."""
        if self._label is None:
            return
        own = record[self._label].strip()
        self._known.add(own)
        if len(lines) > 1:
            rows = list(self._plain.records(lines))
            if all(len(row) == self._width for row in rows):
                labels = [row[self._label].strip() for row in rows]
                if own in labels:
                    labels.remove(own)
                self._suspects.append((place, place.number + len(lines) - 1, frozenset(labels)))

    def check(self) -> None:
        """Raise for the first suspicious record."""
        for place, last, labels in self._suspects:
            if labels & self._known:
                text = f"a quote opens a text that ends in line {last}, and each of these lines is a row by itself"
                hint = "double the quotes inside texts and quote these texts, or convert the file to JSONL or Parquet"
                raise InvalidInputError(text, where=str(place), hint=hint)


class _Fields(dict[str, str]):
    """Fields of a record. Iteration includes repeated names of the header."""

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
    hint = "save it as UTF-8, such as by iconv -f latin1 -t utf-8"
    return InvalidInputError(text, where=f"{where}, line {line}", hint=hint)


def _line_of_bad_byte(source: Path, where: str) -> int:
    """Return the line of the first byte that is not UTF-8."""
    number = 1
    with opened(source, where) as raw, _as_text(raw, "utf-8-sig", "surrogateescape") as file:
        while (piece := file.readline(MAX_LINE_BYTES)) and not _ESCAPED.search(piece):
            number += piece.endswith(("\n", "\r"))
    return number
