"""Base of all models, and their reader for untrusted bytes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from plumbline.errors import InvalidInputError
from plumbline.schema.suggestions import did_you_mean, fields_at

__all__ = ["Model", "Name", "Sha256", "first_problem", "read_model"]

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""64 lower-case hexadecimal digits."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
"""A name that is safe as a key, a folder and a Prefect name."""

M = TypeVar("M", bound="Model")
_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "missing",
    # Neither TOML nor JSON has tuples.
    "tuple_type": "Input should be a valid list",
}


class Model(BaseModel):
    """Frozen model without unknown keys, NaN or infinity; missing numbers are `None`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, in the order of the fields."""
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
    key = ".".join(str(part) for part in entry["loc"])
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
    try:
        model = kind.model_validate_json(data)
        _refuse_duplicates(data, where)
    except ValidationError as error:
        key, reason = first_problem(error, kind)
        raise InvalidInputError(reason, where=where, key=key) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError("not JSON", where=where) from error
    return model


def _refuse_duplicates(data: bytes, where: str) -> None:
    """Raise for a duplicate key in a JSON object."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        # A set costs less than a count, and almost every object passes.
        if len({key for key, _ in pairs}) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise InvalidInputError("is given twice in one object", where=where, key=twice[:80])

    json.loads(data, object_pairs_hook=check)
