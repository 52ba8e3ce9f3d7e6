"""A folder for the time of a round; what is worth keeping goes to the stores."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from plumbline.errors import ConfigurationError
from plumbline.schema.base import Name

__all__ = ["check_round_id", "work_folder"]


def check_round_id(name: str, *, where: str, key: str = "") -> str:
    """The name of a round as somebody gave it; `ConfigurationError` if it is none, for it names a folder and keys."""
    try:
        return TypeAdapter[str](Name).validate_python(name)
    except ValidationError as error:
        mend = "1 to 63 of lower-case letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise ConfigurationError(f"{name!r} is no name of a round", where=where, key=key, mend=mend) from error


@contextmanager
def work_folder(state: Path, name: str) -> Iterator[Path]:
    """A folder of this name below the state folder, empty at first, and gone in the end."""
    work = (state / "work").resolve()
    folder = (work / name).resolve()
    # It is emptied: whatever a name leads to, nothing but a folder of our own.
    if folder.parent != work:
        raise ConfigurationError(f"{name!r} leads out of it", where=str(work), mend="give the round another name")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
