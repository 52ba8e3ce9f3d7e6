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

from plumbline.environments.locks.model import Pin, repository_url
from plumbline.environments.locks.selection import add_pin, check_excludes_none, chosen_names
from plumbline.schema.errors import ConfigurationError


def pylock_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins for this interpreter, and the packages from local folders.

    `extras` limits extras and groups; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    own: dict[str, str] = {}
    try:
        lock = Pylock.from_dict(content)
        own_groups = lock.default_groups or ()
        named = {*(lock.extras or ()), *(lock.dependency_groups or ())}
        chosen = chosen_names(named, extras, where)
        if extras is None:
            for package in lock.packages:
                check_excludes_none(str(package.marker or ""), where)
        for package, archive in lock.select(
            environment=cast("Environment", {**default_environment(), **markers}),
            tags=_tags(markers),
            extras=[name for name in lock.extras or () if name in chosen],
            dependency_groups={*own_groups, *(name for name in lock.dependency_groups or () if name in chosen)},
        ):
            version = str(package.version or "")
            if isinstance(archive, PackageDirectory):
                own[package.name] = version
                continue
            hashes = [f"{name}:{value}" for by_kind in _hashes(package) for name, value in by_kind.items()]
            is_direct = isinstance(archive, PackageVcs | PackageArchive)
            path = str(archive.path or "") if is_direct and not archive.url else ""
            add_pin(pins, where, package.name, version, url=_url(archive), path=path, hashes=hashes)
    except (PylockValidationError, PylockSelectError) as error:
        raise ConfigurationError(f"{error}", where=where, hint="write it anew with the tool that made it") from error
    return pins, own


def _tags(markers: Mapping[str, str]) -> list[Tag] | None:
    """Return CPython's wheel tags under these markers; `None` for this interpreter."""
    if not markers:
        return None
    minor = tuple(map(int, markers["python_version"].split(".")))
    name = f"cp{minor[0]}{minor[1]}"
    return [*cpython_tags(minor), *compatible_tags(minor, name)]


def _hashes(package: Package) -> Iterator[Mapping[str, str]]:
    yield from (wheel.hashes for wheel in package.wheels or ())
    yield from (archive.hashes for archive in (package.sdist, package.archive) if archive)


def _url(archive: PackageVcs | PackageArchive | PackageWheel | PackageSdist) -> str:
    """Return the URL of a package that comes from no index."""
    if isinstance(archive, PackageVcs):
        return repository_url(archive.url or "", archive.commit_id, archive.subdirectory or "", kind=archive.type)
    return archive.url or "" if isinstance(archive, PackageArchive) else ""
