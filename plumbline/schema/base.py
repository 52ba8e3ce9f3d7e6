"""Base class of all data models, and parser of untrusted JSON."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints, ValidationError
from typing_extensions import Self

from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.suite_file import did_you_mean, fields_at

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""64 lower-case hexadecimal digits."""
ShortDigest = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
"""The first 16 hex digits of a SHA-256."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A name that is safe as a key, a folder and a Prefect name."""

_LARGEST = 2**53
"""Largest integer up to which every integer is a float too."""
_HUGE = 1e100
"""Maximum magnitude of a recorded number: above every norm of fp32 values (1e45), and its square is finite."""
_MAX_STEPS = 10**9

Whole = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
"""A number of things, or of bytes."""
Step = Annotated[int, Field(ge=0, le=_MAX_STEPS)]
"""A step of a training, or a number of steps."""
Number = Annotated[float, Field(ge=-_HUGE, le=_HUGE)]
Label = Annotated[str, StringConstraints(max_length=500)]
"""A name of software, of hardware, or of a part of a model."""
_MAX_TEXT = 8000
Text = Annotated[str, StringConstraints(max_length=_MAX_TEXT)]
"""A sentence, or an environment variable's value."""
Scalar = bool | Whole | Number | Text | None


def _bounded_json(value: JsonValue) -> JsonValue:
    """Return `value`; raise `ValueError` for excessive numbers or text lengths."""
    open_values = [value]
    while open_values:
        current = open_values.pop()
        if isinstance(current, dict):
            open_values += [*current, *current.values()]
        elif isinstance(current, list):
            open_values += current
        elif isinstance(current, int | float) and not -_HUGE <= current <= _HUGE:
            raise ValueError("a number is not finite, or too large")
        elif isinstance(current, int) and abs(current) > _LARGEST:
            raise ValueError("an integer is too large")
        elif isinstance(current, str) and len(current) > _MAX_TEXT:
            raise ValueError("a text is too long")
    return value


PlainJson = Annotated[JsonValue, AfterValidator(_bounded_json)]
"""Any JSON value of finite numbers, which has a digest."""

M = TypeVar("M", bound="Model")
_MAX_VALUES = 4_000_000
"""Maximum number of values in a JSON document, which decides how much memory its parsing takes.

The largest honest record has 1.9 million in 38 MB: BERT-large with 20 tapped steps, 20 portable ones, a curve of a
million steps, and an hour of samples of eight GPUs.
"""
_MAX_KEYS = 20_000
"""Maximum number of keys of one object; pydantic collects an error of a kilobyte for each wrong key."""
_IS_MEMBER = re.compile(r"(function-|constrained-|literal\[|tuple\[|kind:)")
_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "missing",
    # Neither TOML nor JSON has tuples.
    "tuple_type": "Input should be a valid list",
}


class Model(BaseModel):
    """Frozen Pydantic model without unknown keys, NaN or infinity. Missing numbers are `None`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """Convert to plain JSON values, in field order."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with changed fields."""
        return type(self).model_validate({**self.model_dump(), **changes})


def first_problem(error: ValidationError, kind: type[BaseModel] | None = None) -> tuple[str, str]:
    """Return the key and the reason of a validation error.

    An unknown key comes first: a misspelt key also makes the right key missing. With `kind`, the validated model, the
    reason suggests the right key.
    """
    entries = error.errors(include_url=False, include_context=False)
    entry = next((entry for entry in entries if entry["type"] == "extra_forbidden"), entries[0])
    # Without pydantic's names of a union's members, such as `function-after[...]` and `constrained-str`.
    key = ".".join(str(part) for part in entry["loc"] if not _IS_MEMBER.match(str(part)))
    # Pydantic's prefix of a custom validator's message.
    said = entry["msg"].removeprefix("Value error, ")
    reason = _REASONS.get(entry["type"], said)
    if kind is not None and entry["type"] == "extra_forbidden" and entry["loc"]:
        suggestion = did_you_mean(str(entry["loc"][-1]), fields_at(kind, entry["loc"][:-1]))
        reason += f"; {suggestion}" if suggestion else ""
    return key, reason


def read_model(kind: type[M], source: bytes | Path, *, where: str = "", max_bytes: int = 64 << 20) -> M:
    """Parse `kind` from untrusted JSON; raise `InvalidInputError` with file and key."""
    where = where or (str(source) if isinstance(source, Path) else "")
    if isinstance(source, Path):
        try:
            size = source.stat().st_size
            data = source.read_bytes() if size <= max_bytes else b""
        except OSError as error:
            raise InvalidInputError(f"cannot be read: {error.strerror}", where=where) from error
    else:
        data, size = source, len(source)
    if size > max_bytes:
        raise InvalidInputError(f"{size} bytes, more than the {max_bytes} allowed", where=where)
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _MAX_VALUES:
        raise InvalidInputError(f"more than the {_MAX_VALUES} values allowed", where=where)
    try:
        # First: the number of pydantic's errors has no bound but that of the keys.
        _check_objects(data, where)
        return kind.model_validate_json(data)
    except ValidationError as error:
        key, reason = first_problem(error, kind)
        raise InvalidInputError(reason, where=where, key=key) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not JSON: {str(error)[:_MAX_REASON]}", where=where) from error


_MAX_REASON = 200
_MAX_CHECKED = 10_000
_checked: set[str] = set()
"""Digests of the last documents whose objects are in order."""


def _check_objects(data: bytes, where: str) -> None:
    """Raise for duplicate or too many keys in a JSON object."""
    # A controller reads a record several times: the same bytes are the same objects.
    digest = digest_bytes(data)
    if digest in _checked:
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(pairs) > _MAX_KEYS:
            raise InvalidInputError(f"an object has {len(pairs)} keys, more than the {_MAX_KEYS} allowed", where=where)
        # A set costs less than a count, and almost every object passes.
        if len({key for key, _ in pairs}) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise InvalidInputError("is given twice in one object", where=where, key=twice[:80])

    json.loads(data, object_pairs_hook=check)
    if len(_checked) == _MAX_CHECKED:
        _checked.clear()
    _checked.add(digest)


if TYPE_CHECKING or hasattr(pydantic, "FailFast"):  # since 2.8
    from pydantic import FailFast as FailFast  # noqa: PLC0414 - exported
else:

    class FailFast:
        """Stand-in for Pydantic's `FailFast`, without its early exit."""
