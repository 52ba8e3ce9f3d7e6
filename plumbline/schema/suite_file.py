"""Reader of a suite's TOML as plain values, and suggestions for a misspelt key or name."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from plumbline.errors import ConfigurationError

_KEY = r"(?m)^[ \t]*([\w.\"'-]+)[ \t]*=[^\n]*?"
_TOO_LONG = re.compile(_KEY + r"\d[\d_]{4299}")
_TOO_DEEP = re.compile(_KEY + r"[\[{](?:\s*[\[{]){99}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of the file `path`, with tuples for lists."""
    import tomllib  # of Python 3.11: a trainer, which may run on 3.10, reads no suite

    where, text = str(path), ""
    try:
        text = path.read_text(encoding="utf-8")
        return {key: with_tuples(value) for key, value in tomllib.loads(text).items()}
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=where, hint="name a suite file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"not TOML: {error}", where=where) from error
    except ValueError as error:
        # tomllib passes this error on: Python reads no number of more than 4300 digits.
        hint = "docs/SUITE.md has every key's range"
        raise ConfigurationError(
            "a number too long to read", where=where, key=_key(_TOO_LONG, text), hint=hint
        ) from error
    except RecursionError as error:
        hint = "no key of a suite is nested so deep: docs/SUITE.md"
        raise ConfigurationError("nested too deep", where=where, key=_key(_TOO_DEEP, text), hint=hint) from error


def with_tuples(value: Any) -> Any:
    """Return the value with tuples for lists, as strict validation requires."""
    if isinstance(value, Mapping):
        return {key: with_tuples(content) for key, content in value.items()}
    return tuple(with_tuples(content) for content in value) if isinstance(value, list) else value


def _key(pattern: re.Pattern[str], text: str) -> str:
    """Return the key on the unreadable line, or ""."""
    match = pattern.search(text)
    return match[1] if match else ""


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
