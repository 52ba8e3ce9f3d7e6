"""Row of a dataset, with checks for rows of unknown origin."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, NamedTuple

from plumbline.data.columns import Columns
from plumbline.errors import InvalidInputError

MAX_TEXT_CHARS = 100_000
MAX_LABEL = 9_999
_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]{0,14}))(\.0*)?")
_LONGEST_LABEL = 200


class Place(NamedTuple):
    """Place of a row in the user's own file: `reviews.csv`, `line`, 17."""

    file: str
    unit: str
    """`line` in a file of text, `row` in any other."""
    number: int

    def __str__(self) -> str:
        """Return the place as an error message names it."""
        return f"{self.file}, {self.unit} {self.number}"


class Row(NamedTuple):
    """Text, class (if the task has labels), and second text of a pair."""

    text: str
    label: int | None
    pair: str | None = None
    place: Place | None = None
    """Of an imported row."""


class RawRow(NamedTuple):
    """Row of a file: the label is a name without class."""

    text: str
    label: str | None
    pair: str | None
    place: Place
    spelling: str = ""
    """The label as the file spells it."""


def checked_row(values: Any, columns: Columns, place: Place) -> RawRow:
    """Return the row of the mapping `values`; raise with its place and the column."""
    pair, where = columns.pair, str(place)
    label = None if columns.label is None else values.get(columns.label)
    return RawRow(
        text=_checked_text(values.get(columns.text), where=where, key=columns.text),
        label=None if columns.label is None else label_name(label, where, columns.label),
        pair=None if pair is None else _checked_text(values.get(pair), where=where, key=pair),
        place=place,
        spelling=label if isinstance(label, str) else "",
    )


def _checked_text(text: Any, *, where: str, key: str) -> str:
    if text is None or (isinstance(text, float) and math.isnan(text)) or text == "":
        raise InvalidInputError("the text is missing", where=where, key=key)
    if not isinstance(text, str):
        raise InvalidInputError(f"the text is a {type(text).__name__}, not a string", where=where, key=key)
    if len(text) > MAX_TEXT_CHARS:
        hint = f"at most {MAX_TEXT_CHARS:,}; cut it or leave the row out"
        raise InvalidInputError(f"the text has {len(text):,} characters", where=where, key=key, hint=hint)
    if not text.strip():
        raise InvalidInputError("the text is only white space", where=where, key=key)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError("the text is not valid Unicode", where=where, key=key) from error
    return text


def label_name(label: Any, where: str, key: str) -> str:
    """Return a label as a name: `true` for a boolean, `3` for 3, 3.0 and "3.0"; never 3 for "03"."""
    if isinstance(label, str):
        label = unicodedata.normalize("NFC", label.strip())
        whole = _WHOLE.fullmatch(label)
        label = str(int(whole[1])) if whole else label
    if label is None or label == "":
        raise InvalidInputError("the label is missing", where=where, key=key)
    if isinstance(label, bool):
        return "true" if label else "false"
    if isinstance(label, float) and math.isnan(label):
        raise InvalidInputError("the label is NaN", where=where, key=key)
    if isinstance(label, (int, float)):
        return str(int(label)) if math.isfinite(label) and label == int(label) else repr(label)
    if not isinstance(label, str):
        hint = "a row has one label: a string, a boolean or a number"
        raise InvalidInputError(f"the label is a {type(label).__name__}", where=where, key=key, hint=hint)
    if len(label) > _LONGEST_LABEL or not label.isprintable():
        hint = f"a class name has at most {_LONGEST_LABEL} printable characters; name the column with --label-column"
        raise InvalidInputError(f"the label {label[:40]!r} is not a class name", where=where, key=key, hint=hint)
    return label
