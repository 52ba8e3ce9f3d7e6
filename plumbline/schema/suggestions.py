"""Suggestions for a misspelt key, name or column."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

__all__ = ["did_you_mean", "fields_at", "suggest_or_list"]

_MOST_LISTED = 12
_LONGEST = 200


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return "did you mean `NAME`?" for the closest choice; "" if none is close."""
    known = {choice.casefold(): choice for choice in choices}
    matches = get_close_matches(word.casefold()[:_LONGEST], known, n=1, cutoff=0.6)
    return f"did you mean `{known[matches[0]]}`?" if matches else ""


def suggest_or_list(word: str, choices: Sequence[str]) -> str:
    """Return a suggestion for `word`, else the choices."""
    more = ", ..." if len(choices) > _MOST_LISTED else ""
    listed = f"one of {', '.join(choices[:_MOST_LISTED])}{more}" if choices else ""
    return did_you_mean(word, choices) or listed


def fields_at(kind: type[BaseModel], place: Sequence[str | int]) -> tuple[str, ...]:
    """Return the field names of the model at `place` in `kind`; empty if none."""
    current: Any = kind
    for part in place:
        current = _inner(current, part)
    current = _without_none(current)
    return tuple(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else ()


def _inner(kind: Any, part: str | int) -> Any:
    """Return the type of the value under the key or index `part`."""
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(part))
        return field.annotation if field else None
    arguments = get_args(kind)
    if not arguments:
        return None
    origin = get_origin(kind)
    return arguments[-1] if isinstance(origin, type) and issubclass(origin, Mapping) else arguments[0]


def _without_none(kind: Any) -> Any:
    """Return `T` for `T | None`."""
    if get_origin(kind) in {Union, types.UnionType}:
        return next((argument for argument in get_args(kind) if argument is not type(None)), None)
    return kind
