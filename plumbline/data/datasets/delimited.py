"""Reader of delimited text files, such as CSV and TSV."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from plumbline.data.datasets.receipts import Reading
from plumbline.data.datasets.rows import ColumnOptions
from plumbline.data.datasets.streams import opened
from plumbline.schema.delimited import MAX_LINE_BYTES, Place, Records, dialect_of, encoding_of
from plumbline.schema.errors import InvalidInputError

_ESCAPED = re.compile("[\udc80-\udcff]")
"""Characters that `surrogateescape` produces from bytes that are not UTF-8."""


def read_delimited(
    source: Path, options: ColumnOptions, where: str, reading: Reading
) -> Iterator[tuple[Place, Mapping[str, str]]]:
    """Yield each row's origin (file and line) and its fields."""
    with opened(source, where) as raw:
        encoding = encoding_of(raw.read(4))

    @contextmanager
    def text() -> Iterator[TextIO]:
        with opened(source, where) as raw, _as_text(raw, encoding) as file:
            yield file

    try:
        dialect = dialect_of(text, options.layout, where)
        with text() as file:
            records = Records(file, dialect, options.layout, where)
            yield from records
        reading.add_text(dialect.described(encoding, header=options.header), records.num_lines)
        reading.add_spans(records.num_spans, records.first_span)
    except UnicodeError as error:
        raise _not_unicode(source, where, encoding, error) from error


def _as_text(raw: BinaryIO, encoding: str, errors: str = "strict") -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, newline="")


def _not_unicode(source: Path, where: str, encoding: str, error: UnicodeError) -> InvalidInputError:
    if not encoding.startswith("utf-8") or not isinstance(error, UnicodeDecodeError):
        return InvalidInputError(f"not text in {encoding}: {str(error)[:100]}", where=where, hint="save it as UTF-8")
    line = _line_of_bad_byte(source, where)
    text = f"not CSV in UTF-8: the byte 0x{error.object[error.start]:02x} ({error.reason})"
    hint = "save it as UTF-8, such as by iconv -f latin1 -t utf-8"
    return InvalidInputError(text, where=f"{where}, line {line}", hint=hint)


def _line_of_bad_byte(source: Path, where: str) -> int:
    """Return the number of the first line that is not UTF-8."""
    number = 1
    with opened(source, where) as raw, _as_text(raw, "utf-8-sig", "surrogateescape") as file:
        while (piece := file.readline(MAX_LINE_BYTES)) and not _ESCAPED.search(piece):
            number += piece.endswith(("\n", "\r"))
    return number
