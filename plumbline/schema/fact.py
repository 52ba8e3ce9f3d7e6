"""Statement as a code with values; `report.sentences` formats the text."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from plumbline.schema.base import Model

LIST = "list"
"""Code of several statements in one, as `parts`."""


class Fact(Model):
    """Statement of the judge: a code, and values at full precision."""

    code: str
    """Dotted, its subject first: `optimizer.settings-differ`."""
    values: dict[str, Value] = {}

    @property
    def parts(self) -> tuple[Value, ...]:
        """Return the statements that a combined statement contains."""
        parts = self.values.get("parts")
        return parts if isinstance(parts, tuple) else ()

    def __str__(self) -> str:
        """Raise: only `report.sentences.sentence_of` formats a fact as text."""
        raise TypeError(f"a fact is not text: {self.code}")

    def __hash__(self) -> int:
        """Hash the content, as dictionaries have no hash."""
        return hash((self.code, repr(sorted(self.values.items(), key=lambda item: item[0]))))


_One = bool | int | float | str | Fact | None
Value = _One | tuple[_One, ...]
"""A value of a fact; another fact is a clause of the sentence."""

Statement = Fact | str
"""A fact, or words from elsewhere, such as an error's message."""

Fact.model_rebuild()


def fact(code: str, **values: Any) -> Fact:
    """Create a fact; non-finite numbers become text, as JSON lacks these."""
    return Fact(code=code, values={name: _plain(value) for name, value in values.items()})


def joined(statements: Iterable[Statement]) -> Statement:
    """Combine statements into one, skipping empty ones."""
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
