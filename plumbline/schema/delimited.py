"""Strict parser of delimited text that loses no line silently. Pure.

Datasets and the series of other tools are read alike. `csv.Sniffer` is not used: it guesses from letter frequencies,
takes `;` inside texts for the delimiter, and reports `doublequote=False` for files whose sample has no escaped quote.
Here a delimiter counts only if every record of the sample has as many fields as the header.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from plumbline.schema.errors import InvalidInputError

if TYPE_CHECKING:
    from _csv import Reader

MAX_LINE_BYTES = 800_000
_SAMPLE_CHARS = 1 << 16
_DELIMITERS = (",", ";", "\t", "|")
_MOST_RECORDS = 200


@dataclass(frozen=True, slots=True)
class Dialect:
    """Delimiter and quoting, as `csv.reader` arguments."""

    delimiter: str
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
    """`csv.QUOTE_MINIMAL` or `csv.QUOTE_NONE`."""

    def records(self, lines: Iterable[str]) -> Reader:
        """Return a strict CSV reader of all records."""
        return csv.reader(lines, strict=True, delimiter=self.delimiter, quoting=self.quoting)

    def described(self, encoding: str, *, header: bool) -> str:
        """Describe encoding and dialect, for an import receipt."""
        encoding = encoding.upper().removesuffix("-SIG")
        quotes = "quotes enclose texts" if self.quoting == csv.QUOTE_MINIMAL else "quotes belong to the text"
        return f"{encoding}, delimiter {self.delimiter!r}, {quotes}, {'a header' if header else 'no header'}"


_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Encodings by the mark at the start of a file; PowerShell's `>` writes UTF-16."""


def encoding_of(start: bytes) -> str:
    """Detect the encoding by byte order mark; default UTF-8."""
    return next((name for mark, name in _MARKS.items() if start.startswith(mark)), "utf-8")


def decoded(data: bytes) -> str:
    """Return the text of a person's file: an editor may begin it with a byte order mark. Raise `UnicodeError`."""
    return data.decode(encoding_of(data))


def data_of(document: Any, where: str) -> Any:
    """Return the array `data` of a document, else the document. Raise for an array beside `data`."""
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        return document
    if beside := next((key for key, value in document.items() if key != "data" and isinstance(value, list)), None):
        hint = "write the rows as an array of their own, in a file of their own"
        raise InvalidInputError("is beside `data` and would be left out", where=where, key=beside, hint=hint)
    return document["data"]


class Place(NamedTuple):
    """Place of a row, such as `reviews.csv`, `line`, 17."""

    file: str
    unit: str
    """`line` in a file of text, `row` in any other."""
    number: int

    def __str__(self) -> str:
        """Format the place for an error message."""
        return f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Expected columns of a delimited file."""

    fits: Callable[[Sequence[str]], bool]
    """Whether these names of columns are expected ones."""
    key_of: Callable[[Sequence[str], str], Callable[[Sequence[str]], str] | None]
    """Reader of the value by which a line by itself is known as a row, by the header and the file's name."""
    header: bool = True
    """Whether the first record names the columns; else these are 1, 2, ..."""
    unit: str = "line"

    def names(self, first: Sequence[str]) -> list[str]:
        """Return the column names: the first record, or numbers without header."""
        return list(first) if self.header else [str(number) for number in range(1, len(first) + 1)]


def dialect_of(text: Callable[[], AbstractContextManager[TextIO]], layout: Layout, where: str) -> Dialect:
    """Detect the dialect of a file; `text` is its beginning.

    A text may begin with a lone quote. Read as a quoted text, it would swallow the lines up to the next quote: of
    quotings with tabs, choose that under which the whole file is regular, with the most records.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    with text() as file:
        best = _sniffed(file.read(_SAMPLE_CHARS), layout, where)
    most = 0
    for dialect in (Dialect("\t"), Dialect("\t", csv.QUOTE_NONE)) if best.delimiter == "\t" else ():
        with text() as file:
            count = _num_records(_lines(file, where), dialect)
        if count > most:
            best, most = dialect, count
    return best


def _sniffed(sample: str, layout: Layout, where: str) -> Dialect:
    """Detect the dialect from `sample`; raise if ambiguous."""
    dialects = [*(Dialect(delimiter) for delimiter in _DELIMITERS), Dialect("\t", csv.QUOTE_NONE)]
    records = {dialect: _records(sample, dialect) for dialect in dialects}
    several = [dialect for dialect in dialects if records[dialect] and len(records[dialect][0]) > 1]
    if not several:
        return Dialect(",")
    regular = [dialect for dialect in several if len({len(record) for record in records[dialect]}) == 1]
    fitting = [dialect for dialect in several if layout.fits(layout.names(records[dialect][0]))]
    best = [dialect for dialect in fitting if dialect in regular] or fitting or regular or several
    delimiters = sorted({dialect.delimiter for dialect in best})
    if len(delimiters) > 1 and best[0] in fitting:
        text = f"the delimiter could be any of {' '.join(map(repr, delimiters))}"
        raise InvalidInputError(text, where=where, hint="name the columns, or convert the file to JSONL or Parquet")
    return best[0]


def _records(sample: str, dialect: Dialect) -> list[list[str]]:
    """Return the sample's complete records; empty if not valid CSV."""
    records: list[list[str]] = []
    lines = list(io.StringIO(sample, newline=""))
    is_cut = len(sample) >= _SAMPLE_CHARS
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


def _lines(file: TextIO, where: str) -> Iterator[str]:
    """Yield lines; raise early for lines that are too long."""
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            place = Place(where, "line", number)
            raise InvalidInputError(f"longer than {MAX_LINE_BYTES:,} characters", where=str(place))
        yield line


def _num_records(lines: Iterator[str], dialect: Dialect) -> int:
    """Count the records; 0 if their numbers of fields differ."""
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


class Records:
    """Reader of a delimited file's rows, which counts lines and multi-line rows."""

    def __init__(self, file: TextIO, dialect: Dialect, layout: Layout, where: str) -> None:
        self.num_lines = 0
        self.num_spans = 0
        self.first_span: Place | None = None
        self._dialect = dialect
        self._layout = layout
        self._where = where
        self._lines: list[str] = []
        self._reader = dialect.records(self._kept(file))

    def __iter__(self) -> Iterator[tuple[Place, Mapping[str, str]]]:
        header: list[str] = []
        guard: _SwallowedRows | None = None
        for place, record in self._records():
            if guard is None:
                header = self._layout.names(record)
                guard = _SwallowedRows(len(header), self._dialect, self._layout.key_of(header, self._where))
                if self._layout.header:
                    continue
            _check_record(record, header, place, self._layout)
            if len(self._lines) > 1:
                self.num_spans += 1
                self.first_span = self.first_span or place
            guard.see(place, record, self._lines)
            yield place, _Fields(header, record)
        if guard is not None:
            guard.check()

    def _kept(self, file: TextIO) -> Iterator[str]:
        for line in _lines(file, self._where):
            self._lines.append(line)
            yield line

    def _records(self) -> Iterator[tuple[Place, list[str]]]:
        """Yield each non-blank record, and the place of its first line."""
        try:
            for record in self._reader:
                place = Place(self._where, self._layout.unit, self.num_lines + 1)
                self.num_lines = self._reader.line_num
                if record:
                    yield place, record
                self._lines.clear()
        except csv.Error as error:
            place = Place(self._where, self._layout.unit, self.num_lines + 1)
            raise InvalidInputError(f"not CSV in UTF-8: {error}", where=str(place)) from error


def _check_record(record: list[str], header: list[str], place: Place, layout: Layout) -> None:
    if len(record) != len(header):
        more, hint = "more", "quote texts that contain the delimiter"
        if len(record) < len(header):
            more, hint = "fewer", "the file may be cut off; an empty field has its delimiter too"
        raise InvalidInputError(f"has {more} fields than the header", where=str(place), hint=hint)
    is_repeated = layout.header and len(header) > 1 and record[-1].strip() in map(str.strip, header)
    if is_repeated and {_name(field) for field in record} == {_name(field) for field in header}:
        hint = "remove the line; several files are read as a folder or a glob, such as FOLDER/*.csv"
        raise InvalidInputError("repeats the header", where=str(place), hint=hint)


def _name(field: str) -> str:
    return field.strip("\ufeff ")


class _SwallowedRows:
    """Detector of rows that a stray quote merged into one.

    A record of several lines is suspicious if each line by itself has all fields, and one of them, beside the line
    with the record's own key, a key of the file.
    """

    def __init__(self, width: int, dialect: Dialect, key_of: Callable[[Sequence[str]], str] | None) -> None:
        self._width = width
        self._key_of = key_of
        self._plain = Dialect(dialect.delimiter, csv.QUOTE_NONE)
        self._known: set[str] = set()
        self._suspects: list[tuple[Place, int, frozenset[str]]] = []

    def see(self, place: Place, record: list[str], lines: list[str]) -> None:
        """Examine a record: note its key, or that it looks merged."""
        if self._key_of is None:
            return
        own = self._key_of(record)
        self._known.add(own)
        if len(lines) > 1:
            rows = list(self._plain.records(lines))
            if all(len(row) == self._width for row in rows):
                keys = [self._key_of(row) for row in rows]
                if own in keys:
                    keys.remove(own)
                self._suspects.append((place, place.number + len(lines) - 1, frozenset(keys)))

    def check(self) -> None:
        """Raise for the first record that looks merged."""
        for place, last, keys in self._suspects:
            if keys & self._known:
                text = f"a quote opens a text that ends in line {last}, and each of these lines is a row by itself"
                hint = "double the quotes inside texts and quote these texts, or convert the file to JSONL or Parquet"
                raise InvalidInputError(text, where=str(place), hint=hint)


class _Fields(dict[str, str]):
    """Fields of a record, by name; iteration includes repeated names."""

    def __init__(self, header: list[str], record: list[str]) -> None:
        super().__init__(zip(header, record, strict=True))
        self._header = header

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)
