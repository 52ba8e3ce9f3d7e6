"""Conversion of labels to numbered classes. Pure."""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from plumbline.data.datasets.receipts import Reading
from plumbline.data.datasets.rows import LABEL_HINT, MAX_LABEL, RawRow, Row
from plumbline.schema.delimited import Place
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.escape import first_of
from plumbline.schema.manifest import ClassRows
from plumbline.schema.suite_file import suggest_or_list

_WHOLE = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|-?inf")
_CODE = re.compile(r"0[0-9]+")
"""A name of digits, such as a postcode: no number is written so."""
_MISSING = {"nan", "-nan", "null", "(null)", "none", "nil", "n/a", "#n/a", "na", "<na>", "nat", "?", "\\n"}
"""Texts of missing values, in lower case; databases export NULL as `\\N`."""
_BOOLEANS = ("false", "true")
_LIST_HINT = "list the classes with --labels, in a suite labels = [...]"
_LEAST_ROWS_A_CLASS = 2
_MOST_NAMED = 6
_MOST_LISTED = 12
_IMBALANCED = 0.9


class LabelIndex:
    """Temporary numbers for labels, in order of appearance, until classes are known."""

    def __init__(self, where: str, reading: Reading) -> None:
        self._where = where
        self._reading = reading
        self._numbers: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self.num_rows = 0

    def rows(self, rows: Iterable[RawRow]) -> Iterator[Row]:
        """Yield the rows with labels replaced by their temporary numbers."""
        for row in rows:
            number = None
            if row.label is not None:
                number = self._number(row.label, row.place)
                if row.spelling:
                    self._reading.add_label(row.label, row.spelling)
            self.num_rows += 1
            yield Row(row.text, number, row.pair, row.place)

    def _number(self, label: str, place: Place) -> int:
        known = self._numbers.get(label)
        if known is not None:
            return known
        if len(self._numbers) > MAX_LABEL:
            text = f"more than {MAX_LABEL + 1:,} different labels"
            raise InvalidInputError(text, where=str(place), hint=LABEL_HINT)
        self._places[label] = place
        return self._numbers.setdefault(label, len(self._numbers))

    def classes(self, given: Sequence[str] | None) -> tuple[tuple[str, ...], array[int], dict[str, str]]:
        """Return class names, a number-to-class table, and merged label spellings."""
        order, spelling = class_order(
            {label: str(place) for label, place in self._places.items()}, given, self._where, self.num_rows
        )
        places = {name: place for place, name in enumerate(order)}
        return order, array("h", [places[spelling.get(label, label)] for label in self._numbers]), spelling


def class_order(
    places: Mapping[str, str], given: Sequence[str] | None, where: str, num_rows: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the ordered classes, and the class of each variant label spelling.

    `places` maps each label to its first place. The order does not depend on the order of rows: as `given`; else
    `false`, `true`; else 0 to n - 1; else by code points. Numbers that are no such sequence are classes only if
    `given`.
    """
    if given is not None:
        for label, place in places.items():
            if label not in given:
                text = f"the label {label!r} is not in the given classes"
                raise InvalidInputError(text, where=place, key="labels", hint=suggest_or_list(label, given))
        return tuple(given), {}
    labels = sorted(places)
    if len(labels) == 1:
        hint = "classification needs at least two classes"
        raise InvalidInputError(f"all rows have the same label, {labels[0]!r}", where=where, key="label", hint=hint)
    spelling = {label: label.casefold() for label in labels if label.casefold() in _BOOLEANS}
    if labels and len(spelling) == len(labels):
        return tuple(sorted(set(spelling.values()))), spelling
    _check_alike(labels, places)
    if any(map(_NUMBER.fullmatch, labels)) and not any(map(_CODE.fullmatch, labels)):
        return _numbered(labels, places, where), {}
    _check_names(labels, places, where, num_rows)
    return tuple(labels), {}


def _numbered(labels: Sequence[str], places: Mapping[str, str], where: str) -> tuple[str, ...]:
    """Return the classes 0 to n - 1; raise for other numbers."""
    texts = [label for label in labels if not _NUMBER.fullmatch(label)]
    if texts:
        number = next(label for label in labels if _NUMBER.fullmatch(label))
        text = f"the labels mix numbers ({number}) and words ({texts[0]!r})"
        raise InvalidInputError(text, where=places[texts[0]], hint=_LIST_HINT)
    fractions = [label for label in labels if not _WHOLE.fullmatch(label)]
    if fractions:
        text = f"the label {fractions[0]} is not a class: only classification is supported, not regression"
        raise InvalidInputError(text, where=places[fractions[0]], hint=_LIST_HINT)
    numbers = sorted(map(int, labels))
    if numbers != list(range(len(numbers))):
        shown = first_of(numbers, _MOST_NAMED)
        listed = ",".join(map(str, numbers)) if len(numbers) <= _MOST_NAMED else "1..5"
        hint = "-1 often marks a hidden label; or list the classes" if numbers[0] == -1 else "if each number is a class"
        hint = f"{hint}: --labels={listed}, in a suite labels = [{shown}]"
        text = f"the labels are the numbers {shown}, not the classes 0 to n - 1"
        raise InvalidInputError(text, where=where, key="labels", hint=hint)
    return tuple(map(str, numbers))


def _check_alike(labels: Sequence[str], places: Mapping[str, str]) -> None:
    """Raise if two labels differ only in case, spaces or leading zeros."""
    folded: dict[str, str] = {}
    for label in labels:
        plain = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
        other = folded.setdefault(str(int(plain)) if _WHOLE.fullmatch(plain) else plain, label)
        if other != label:
            text = f"the labels {other!r} and {label!r} differ only in case, spaces, width or leading zeros"
            raise InvalidInputError(text, where=places[label], hint=f"spell them alike, or {_LIST_HINT}")


def _check_names(labels: Sequence[str], places: Mapping[str, str], where: str, num_rows: int) -> None:
    for label in labels:
        if label.casefold() in _MISSING:
            hint = f"leave the row out; if the label is a class, {_LIST_HINT}"
            raise InvalidInputError(f"the label {label!r} looks like a missing value", where=places[label], hint=hint)
    if num_rows < _LEAST_ROWS_A_CLASS * len(labels):
        text = f"{len(labels):,} different labels in {num_rows:,} rows: the column does not contain classes"
        raise InvalidInputError(text, where=where, key="label", hint=LABEL_HINT)


def class_notes(classes: Sequence[ClassRows]) -> tuple[str, ...]:
    """Return warnings about missing classes and a dominant class."""
    notes = []
    for split in ("train", "evaluation"):
        rows = {entry.name: getattr(entry, f"{split}_rows") for entry in classes}
        missing = [name for name, count in rows.items() if not count]
        if missing:
            notes.append(f"no row of the {split} split has the class {first_of(missing, _MOST_NAMED)}")
        name, most = max(Counter(rows).most_common(1), default=("", 0))
        total = sum(rows.values())
        if total and most >= _IMBALANCED * total:
            notes.append(f"imbalanced: {100 * most / total:.0f}% of the {split} rows have the class {name}")
    return tuple(notes)


def listed_classes(names: Sequence[str]) -> str:
    """Format classes as `0 = negative, 1 = positive`, at most twelve."""
    return first_of([f"{number} = {name}" for number, name in enumerate(names)], _MOST_LISTED)
