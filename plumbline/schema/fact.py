"""A statement as a code with its values. `report.sentences` makes the sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from plumbline.schema.base import Model

LIST = "list"
"""Code of several statements in one, as `parts`."""


class Fact(Model):
    """One statement of the judge: what it says, and its values at full precision."""

    code: str
    """Dotted, its subject first: `optimizer.settings-differ`."""
    values: dict[str, Value] = {}

    @property
    def parts(self) -> tuple[Value, ...]:
        """Return the statements of a list of several."""
        parts = self.values.get("parts")
        return parts if isinstance(parts, tuple) else ()

    def __str__(self) -> str:
        """Raise: `report.sentences.sentence_of` makes the sentence, so that no code reads or prints a code as words."""
        raise TypeError(f"a fact is not text: {self.code}")

    def __hash__(self) -> int:
        """Hash by content: a dictionary of values has no hash of its own."""
        return hash((self.code, repr(sorted(self.values.items(), key=lambda item: item[0]))))


_One = bool | int | float | str | Fact | None
Value = _One | tuple[_One, ...]
"""A value of a fact; another fact is a clause of the sentence."""

Statement = Fact | str
"""A fact, or words from elsewhere, such as an error's message."""

Fact.model_rebuild()


def fact(code: str, **values: Any) -> Fact:
    """Return a fact. A number that is not finite becomes its name, since JSON has none."""
    return Fact(code=code, values={name: _plain(value) for name, value in values.items()})


def joined(statements: Iterable[Statement]) -> Statement:
    """Return one statement of several, without empty ones."""
    parts = [statement for statement in statements if statement != ""]
    return fact(LIST, parts=parts) if len(parts) > 1 else next(iter(parts), "")


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    return value if isinstance(value, str | bool | Fact | None) else str(value)
