"""Reader of pylock.toml (PEP 751), using `packaging`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from packaging.markers import Environment, default_environment
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageDirectory,
    PackageSdist,
    PackageVcs,
    PackageWheel,
    Pylock,
    PylockSelectError,
    PylockValidationError,
)
from packaging.tags import Tag, compatible_tags, cpython_tags

from plumbline.environments.locks.model import LockEntry, repository_url
from plumbline.environments.locks.selection import Selection
from plumbline.schema.errors import ConfigurationError


def pylock_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the selected packages; the default groups belong to every choice."""
    try:
        lock = Pylock.from_dict(content)
        extras, groups = lock.extras or (), lock.dependency_groups or ()
        chosen = selection.names({*extras, *groups})
        for package in lock.packages:
            selection.check_all(package.marker)
        for package, archive in lock.select(
            environment=cast("Environment", {**default_environment(), **selection.markers}),
            tags=_tags(selection.markers),
            extras=chosen.intersection(extras),
            dependency_groups={*(lock.default_groups or ()), *chosen.intersection(groups)},
        ):
            yield _entry(package, archive)
    except (PylockValidationError, PylockSelectError) as error:
        hint = "write it anew with the tool that made it"
        raise ConfigurationError(f"{error}", where=selection.where, hint=hint) from error


def _tags(markers: Mapping[str, str]) -> list[Tag] | None:
    """Return CPython's wheel tags under these markers; `None` for this interpreter."""
    if not markers:
        return None
    minor = tuple(map(int, markers["python_version"].split(".")))
    name = f"cp{minor[0]}{minor[1]}"
    return [*cpython_tags(minor), *compatible_tags(minor, name)]


def _entry(
    package: Package, archive: PackageVcs | PackageArchive | PackageDirectory | PackageWheel | PackageSdist
) -> LockEntry:
    url = path = ""
    if isinstance(archive, PackageVcs):
        url = repository_url(archive.url or "", archive.commit_id, archive.subdirectory or "", kind=archive.type)
    elif isinstance(archive, PackageArchive):
        url = archive.url or ""
    if isinstance(archive, PackageVcs | PackageArchive) and not archive.url:
        path = str(archive.path or "")
    archives = (*(package.wheels or ()), package.sdist, package.archive)
    hashes = [f"{name}:{value}" for one in archives if one for name, value in one.hashes.items()]
    is_folder = isinstance(archive, PackageDirectory)
    return LockEntry(package.name, str(package.version or ""), url, path, hashes, is_elsewhere=is_folder)
