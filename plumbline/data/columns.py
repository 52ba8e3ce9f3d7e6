"""Columns of text, second text and label: given, or guessed if unambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from plumbline.errors import InvalidInputError
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
_TEXT_HINT = "name the columns with --text-column and --label-column"
_HEADER_HINT = "; a file without a header line is read with --no-header and numbers, such as --text-column 2"


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one file."""

    text: str
    label: str | None
    pair: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the required columns."""
        return tuple(name for name in (self.text, self.pair, self.label) if name is not None)


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Column names set by the user; `None` means guess."""

    text: str | None = None
    label: str | None = None
    pair: str | None = None
    labelled: bool = True
    header: bool = True
    """Whether delimited files begin with the names of their columns; else these are 1, 2, ..."""

    def names(self, first: Sequence[str]) -> list[str]:
        """Return the names of a delimited file's columns, by its first record."""
        return list(first) if self.header else [str(number) for number in range(1, len(first) + 1)]

    def resolve(self, found: Sequence[str], where: str) -> Columns:
        """Return the columns among those `found`; raise with the choices if unclear."""
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
    more = ", ..." if len(found) > _MOST_LISTED else ""
    return (", ".join(name[:60] for name in found[:_MOST_LISTED]) or "none") + more


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
    """Return the text column, and the second text's column of a pair."""
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
    hint = f"name the column with --{kind}-column" + ("" if kind == "label" else " (and --pair-column)")
    hint += _HEADER_HINT
    why = f"the column of the {kind} is ambiguous ({choices})"
    raise InvalidInputError(why, where=where, key=kind, hint=hint)
