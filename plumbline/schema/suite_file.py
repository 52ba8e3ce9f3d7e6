"""Reader of a suite's TOML as plain values, robust against any input."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plumbline.errors import ConfigurationError

__all__ = ["read_toml", "with_tuples"]

_KEY = r"(?m)^[ \t]*([\w.\"'-]+)[ \t]*=[^\n]*?"
_TOO_LONG = re.compile(_KEY + r"\d[\d_]{4299}")
_TOO_DEEP = re.compile(_KEY + r"[\[{](?:\s*[\[{]){99}")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of the file `path`, with tuples for lists."""
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
