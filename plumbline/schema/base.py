"""The base of every model that crosses a file or a wire, and how one is read from untrusted bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from plumbline.errors import InvalidInputError

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
    """Frozen, closed to unknown keys, and without NaN or infinity: a missing number is `None`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, in the order of the fields."""
        return self.model_dump(mode="json")

    def replace(self, **changes: Any) -> Self:
        """A validated copy with some fields changed."""
        return type(self).model_validate({**self.model_dump(), **changes})


def first_problem(error: ValidationError) -> tuple[str, str]:
    """The key and the reason of a validation error, in words a person can act on.

    An unknown key comes first: where a key is misspelt, the one that is missing is only its shadow.
    """
    entries = error.errors(include_url=False, include_context=False)
    entry = next((entry for entry in entries if entry["type"] == "extra_forbidden"), entries[0])
    key = ".".join(str(part) for part in entry["loc"])
    # Pydantic writes this before what a validator of ours says.
    said = entry["msg"].removeprefix("Value error, ")
    return key, _REASONS.get(entry["type"], said)


def read_model(kind: type[M], source: bytes | Path, *, where: str = "", max_bytes: int = 64 << 20) -> M:
    """Read `kind` from JSON that nobody vouches for; `InvalidInputError` names the file and the key."""
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
        return kind.model_validate_json(data)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise InvalidInputError(reason, where=where, key=key) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError("not JSON", where=where) from error
