"""Parsing of times and numbers in imported series. Pure."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import UTC, datetime

from plumbline.schema.errors import InvalidInputError

_COMPACT = re.compile(r"(?:19|20|21)\d{6}(?:\.0)?")
"""A date as one number, which read as seconds would be a day of August 1970."""
_LOOSE = re.compile(
    r"(\d{4})[./-](\d{1,2})[./-](\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?"
)
"""A date and time with points or without leading zeros, as Otava writes it: 2025.01.01 3:00:00 +0100."""
_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""From this number on, an epoch is in nanoseconds, microseconds, milliseconds."""
_END = 253_402_300_800
TIME_HINT = "ISO 8601, such as 2026-11-22T02:00:00Z, or seconds or milliseconds since 1970"
_MISSING = frozenset({"", "null", "none", "na", "n/a", "-"})


def time_of(value: object, where: str) -> float:
    """Parse a time to seconds since 1970; raise for anything else."""
    seconds, text = seconds_of(value), f"{str(value).strip()[:60]!r}"
    if seconds is None:
        raise InvalidInputError(f"{text} is not a time", where=where, key="time", hint=TIME_HINT)
    if not 0 <= seconds < _END:
        raise InvalidInputError(f"{text} is not a time after 1970", where=where, key="time")
    return seconds


def seconds_of(value: object) -> float | None:
    """Convert a value to seconds since 1970; `None` if not a time."""
    text = str(value).strip()
    seconds = None if _COMPACT.fullmatch(text) else _float(text)
    if seconds is not None and math.isfinite(seconds):
        return seconds / next((unit for least, unit in _UNITS if seconds >= least), 1.0)
    parsed = _parsed(text)
    return None if parsed is None else (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _parsed(text: str) -> datetime | None:
    with suppress(ValueError):
        return datetime.fromisoformat(text.removesuffix(".0"))
    if (found := _LOOSE.fullmatch(text)) is None:
        return None
    *numbers, zone = found.groups("")
    year, *others = (number.zfill(2) for number in numbers)
    zone = "Z" if zone in ("UTC", "GMT") else zone
    with suppress(ValueError):
        return datetime.fromisoformat(f"{year}-{'-'.join(others[:2])}T{':'.join(others[2:])}{zone}")
    return None


def number_of(value: object) -> float | None:
    """Convert to a number: `nan` if missing or infinite, `None` for text."""
    if isinstance(value, (bool, list, dict)):
        return None
    text = "" if value is None else str(value).strip()
    number = math.nan if text.lower() in _MISSING else _float(text)
    return number if number is None or math.isfinite(number) else math.nan


def _float(text: str) -> float | None:
    """Parse a plain ASCII number, rejecting Python-only forms such as `1_000`."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def value_of(value: object, where: str) -> float | None:
    """Return a numeric value, `None` if missing; raise for other text."""
    number = number_of(value)
    if number is None:
        raise InvalidInputError(f"{str(value)[:60]!r} is not a number", where=where, key="value")
    return None if math.isnan(number) else number
