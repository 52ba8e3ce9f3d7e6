"""One row of a dataset, and what makes a row that nobody vouches for acceptable."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from plumbline.errors import InvalidInputError

__all__ = ["MAX_LABEL", "MAX_TEXT_CHARS", "Row", "checked_row"]

MAX_TEXT_CHARS = 100_000
MAX_LABEL = 9_999
_WHOLE = re.compile(r"[+-]?\d{1,9}")


class Row(NamedTuple):
    """A text, and its label where the task has one."""

    text: str
    label: int | None


def checked_row(text: Any, label: Any, *, labelled: bool, where: str, text_key: str, label_key: str) -> Row:
    """The row, if it can be trained on; else `InvalidInputError` with the file, the row and the column."""
    return Row(
        text=_checked_text(text, where=where, key=text_key),
        label=_checked_label(label, where=where, key=label_key) if labelled else None,
    )


def _checked_text(text: Any, *, where: str, key: str) -> str:
    if text is None or (isinstance(text, float) and math.isnan(text)) or text == "":
        raise InvalidInputError("the text is missing", where=where, key=key)
    if not isinstance(text, str):
        raise InvalidInputError(f"the text is a {type(text).__name__}, not a string", where=where, key=key)
    if len(text) > MAX_TEXT_CHARS:
        mend = f"at most {MAX_TEXT_CHARS:,}; cut it or leave the row out"
        raise InvalidInputError(f"the text has {len(text):,} characters", where=where, key=key, mend=mend)
    if not text.strip():
        raise InvalidInputError("the text is only white space", where=where, key=key)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError("the text is not valid Unicode", where=where, key=key) from error
    return text


def _checked_label(label: Any, *, where: str, key: str) -> int:
    if label is None or label == "":
        raise InvalidInputError("the label is missing", where=where, key=key)
    if isinstance(label, float) and math.isnan(label):
        raise InvalidInputError("the label is NaN", where=where, key=key)
    number: int | None = None
    if isinstance(label, str) and _WHOLE.fullmatch(label.strip()):
        number = int(label)
    elif isinstance(label, int) and not isinstance(label, bool):
        number = label
    elif isinstance(label, float) and label.is_integer():
        number = int(label)
    if number is None:
        mend = "number the classes from 0"
        raise InvalidInputError(f"the label {str(label)[:40]!r} is no whole number", where=where, key=key, mend=mend)
    if not 0 <= number <= MAX_LABEL:
        raise InvalidInputError(f"the label {number} is not between 0 and {MAX_LABEL}", where=where, key=key)
    return number
