"""Dataset rows and their columns: text, second text and label."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plumbline.schema.delimited import Layout, Place
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.escape import first_of
from plumbline.schema.suite_file import did_you_mean

_TEXTS = (
    "text", "sentence", "review", "review_text", "reviewtext", "review_body", "content", "body", "comment",
    "comment_text", "document", "message", "tweet", "utterance", "title", "headline", "question", "answer", "context",
    "passage", "summary", "premise", "hypothesis",
)  # fmt: skip
_PAIRS = (
    ("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("text1", "text2"),
    ("text_1", "text_2"), ("text_a", "text_b"), ("text", "text_pair"), ("question1", "question2"),
    ("premise", "hypothesis"),
)  # fmt: skip
_LABELS = ("label", "labels", "class", "target", "category", "sentiment", "polarity", "intent", "stars", "rating")
_MOST_LISTED = 12
_TEXT_HINT = "name the columns with --text-column and --label-column, in a suite text_column and label_column"
LABEL_HINT = "name the column of the classes with --label-column, in a suite label_column"
_HEADER_HINT = (
    "; a file without a header line is read with --no-header, in a suite header = false, and numbers as names"
)


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns to read from one file."""

    text: str
    label: str | None
    pair: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the required columns."""
        return tuple(name for name in (self.text, self.pair, self.label) if name is not None)


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Column names set by the user; `None` means detect."""

    text: str | None = None
    label: str | None = None
    pair: str | None = None
    labelled: bool = True
    header: bool = True
    """Whether delimited files begin with the names of their columns; else these are 1, 2, ..."""

    @property
    def layout(self) -> Layout:
        """Return how to parse a delimited file."""
        return Layout(self._fits, self._label_of, self.header)

    def _fits(self, found: Sequence[str]) -> bool:
        try:
            self.resolve(found, "")
        except InvalidInputError:
            return False
        return True

    def _label_of(self, found: Sequence[str], where: str) -> Callable[[Sequence[str]], str] | None:
        label = self.resolve(found, where).label
        if label is None:
            return None
        place = found.index(label)
        return lambda record: record[place].strip()

    def resolve(self, found: Sequence[str], where: str) -> Columns:
        """Choose the columns among those `found`; raise with the choices if ambiguous."""
        for name in (self.text, self.pair, self.label if self.labelled else None):
            if name is not None:
                _check_given(name, found, where)
        label = None
        if self.labelled:
            label = self.label or _guessed_label(found, where)
        text, pair = self.text, self.pair
        if text is None:
            text, guessed = _guessed_text([name for name in found if name not in {label, pair}], found, where)
            pair = pair or guessed
        return Columns(text, label, pair)


def _listed(found: Sequence[str]) -> str:
    return first_of([name[:60] for name in found], _MOST_LISTED) or "none"


def _check_given(name: str, found: Sequence[str], where: str) -> None:
    if found.count(name) > 1:
        raise InvalidInputError("more than one column has this name", where=where, key=name)
    if name not in found:
        suggestion = did_you_mean(name, found)
        why = f"the column does not exist (found: {_listed(found)})"
        raise InvalidInputError(why, where=where, key=name, hint=suggestion or _TEXT_HINT + _HEADER_HINT)


def _guessed_label(found: Sequence[str], where: str) -> str:
    candidates = [name for name in found if name.strip().casefold() in _LABELS]
    exact = [name for name in candidates if name == "label"]
    return _only(exact or candidates, found, where, "label")


def _guessed_text(free: Sequence[str], found: Sequence[str], where: str) -> tuple[str, str | None]:
    """Guess the text column, and a second text column for pairs."""
    known = {name.strip().casefold(): name for name in free}
    pairs = [pair for pair in _PAIRS if set(pair) <= set(known)]
    candidates = [name for name in free if name.strip().casefold() in _TEXTS]
    if len(pairs) == 1 and not set(candidates) - {known[name] for name in pairs[0]}:
        first, second = pairs[0]
        return known[first], known[second]
    exact = [name for name in candidates if name == "text"]
    return _only([] if pairs else exact or candidates, found, where, "text"), None


def _only(candidates: Sequence[str], found: Sequence[str], where: str, kind: str) -> str:
    if len(candidates) == 1:
        return candidates[0]
    choices = f"it could be any of: {_listed(candidates)}" if candidates else f"found: {_listed(found)}"
    hint = f"name the column with --{kind}-column, in a suite {kind}_column"
    hint += "" if kind == "label" else " (and --pair-column, pair_column)"
    hint += _HEADER_HINT
    why = f"the column of the {kind} is ambiguous ({choices})"
    raise InvalidInputError(why, where=where, key=kind, hint=hint)


MAX_TEXT_CHARS = 100_000
MAX_LABEL = 9_999
_WHOLE = re.compile(r"([+-]?(?:0|[1-9][0-9]{0,14}))(\.0*)?")
_LONGEST_LABEL = 200


class Row(NamedTuple):
    """Row of a dataset: text, class if labelled, and optional second text."""

    text: str
    label: int | None
    pair: str | None = None
    place: Place | None = None
    """Of an imported row."""


class RawRow(NamedTuple):
    """Row of a file, with a label name instead of a class."""

    text: str
    label: str | None
    pair: str | None
    place: Place
    spelling: str = ""
    """The label as the file spells it."""


def checked_row(values: Any, columns: Columns, place: Place) -> RawRow:
    """Build a row from `values`; raise with its origin and column."""
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
    """Convert a label to text: `true` for a boolean, `3` for 3, 3.0 and "3.0", but not for "03"."""
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
        hint = f"a class name has at most {_LONGEST_LABEL} printable characters; {LABEL_HINT}"
        raise InvalidInputError(f"the label {label[:40]!r} is not a class name", where=where, key=key, hint=hint)
    return label


def declared_name(label: Any, names: Sequence[str], where: str, key: str) -> Any:
    """Return the name that a Hub dataset declares for a class number."""
    if isinstance(label, int) and not isinstance(label, bool):
        if not 0 <= label < len(names):
            text = f"the label {label} is not one of the {len(names)} classes"
            raise InvalidInputError(
                text, where=where, key=key, hint="-1 marks a hidden label: choose a different split"
            )
        return names[label]
    return label
