"""Parts of a record that a test writes by hand."""

from __future__ import annotations

from pathlib import Path

from plumbline.digest import digest_file
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import RECORD_NAME

__all__ = ["record_parts"]


def record_parts(folder: Path) -> tuple[DataFile, ...]:
    """Return the files of `folder` as a record's parts, by name."""
    return tuple(
        DataFile(key=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=digest_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD_NAME
    )
