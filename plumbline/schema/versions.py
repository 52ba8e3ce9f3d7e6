"""Compatibility between product versions: refuse messages, or ignore unknown keys."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from plumbline import __version__
from plumbline.schema.base import Model, first_problem, read_model
from plumbline.schema.errors import ConfigurationError, InvalidInputError

M = TypeVar("M", bound=Model)
_NO_VERSION = (-1,)
_ROUNDS = 20
"""Maximum number of validations: a key may become known as unknown only after a different one is removed."""


def read_any_version(
    kind: type[M],
    source: bytes | Path,
    *,
    version_at: str,
    exact: Collection[str] = (),
    where: str = "",
    max_bytes: int = 64 << 20,
) -> M:
    """Parse like `read_model`, ignoring unknown keys of a different release of the same major version.

    `version_at` is the dotted key of the version. Below the top-level keys `exact`, every key must be known.
    """
    try:
        return read_model(kind, source, where=where, max_bytes=max_bytes)
    except InvalidInputError as error:
        # Any other error, such as a duplicate key or too many values, is none of versions.
        content = _parse(source) if isinstance(error.__cause__, ValidationError) else None
        theirs = _version(content, version_at)
        if _minor(theirs) == _NO_VERSION or theirs == __version__:
            raise
        is_readable = _minor(theirs)[0] == _minor(__version__)[0]
        if is_readable and (read := _read_known(kind, content, exact)) is not None:
            return read
        text = f"{error.what}: written by plumbline {theirs[:40]}, here is {__version__}"
        is_newer = _numbers(theirs) > _numbers(__version__)
        hint = "update plumbline here" if is_newer else "write it again with this version"
        raise InvalidInputError(text, where=error.where, key=error.key, hint=hint) from error


def _minor(version: str) -> tuple[int, ...]:
    """Parse a version to (major, minor)."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return (int(match[1]), int(match[2])) if match else _NO_VERSION


def _numbers(version: str) -> tuple[int, ...]:
    """Return all numbers of a version, of which the first three order releases."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version[:40]))


def _parse(source: bytes | Path) -> Any:
    try:
        return json.loads(source.read_bytes() if isinstance(source, Path) else source)
    except (OSError, ValueError, RecursionError):
        return None


def _version(content: Any, key: str) -> str:
    for name in key.split("."):
        content = content.get(name) if isinstance(content, Mapping) else None
    return content if isinstance(content, str) else ""


def _read_known(kind: type[M], content: Any, exact: Collection[str]) -> M | None:
    """Validate `content`, ignoring unknown keys; `None` if otherwise wrong."""
    for _ in range(_ROUNDS):
        try:
            return kind.model_validate_json(json.dumps(content))
        except ValidationError as error:
            entries = error.errors(include_url=False, include_context=False, include_input=False)
            if any(entry["type"] != "extra_forbidden" or entry["loc"][0] in exact for entry in entries):
                return None
            for entry in entries:
                _remove(content, entry["loc"])
    return None


def _remove(content: Any, place: tuple[int | str, ...]) -> None:
    """Remove the value at a validation error's location."""
    for step in place[:-1]:
        with suppress(KeyError, IndexError, TypeError):
            content = content[step]
    if isinstance(content, dict):
        content.pop(place[-1], None)


def validate_order(kind: type[M], content: Mapping[str, Any]) -> M:
    """Validate a controller's order on a worker; refuse different minor versions."""
    theirs = content.get("version", "")
    if isinstance(theirs, str) and theirs and _minor(theirs) != _minor(__version__):  # "": not stated
        text = f"comes from plumbline {theirs[:40]} of the controller, this worker has {__version__}"
        older = "this worker" if _minor(theirs) > _minor(__version__) else "the controller"
        raise ConfigurationError(text, where="order", hint=f"update plumbline on {older}")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        key, reason = first_problem(error, kind)
        hint = "install the same version of plumbline on controllers and workers"
        raise ConfigurationError(reason, where="order", key=key, hint=hint) from error
