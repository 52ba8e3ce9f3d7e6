"""Reader of pylock.toml (PEP 751), by `packaging`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from packaging.markers import Environment, default_environment
from packaging.pylock import (
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
from plumbline.schema.errors import ConfigurationError


def pylock_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins for this interpreter, and packages from folders.

    `extras` limits extras and groups; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    own: dict[str, str] = {}
    try:
        lock = Pylock.from_dict(content)
        known = (lock.extras or (), lock.dependency_groups or ())
        chosen = [tuple(name for name in names if extras is None or name in extras) for names in known]
        for package, archive in lock.select(
            environment=cast("Environment", {**default_environment(), **markers}),
            tags=_tags(markers),
            extras=chosen[0],
            dependency_groups=chosen[1],
        ):
            version = str(package.version or "")
            if isinstance(archive, PackageDirectory):
                own[package.name] = version
                continue
            archive_hashes = [wheel.hashes for wheel in package.wheels or ()]
            archive_hashes += [package.sdist.hashes] if package.sdist else []
            hashes = tuple(
                sorted(f"{name}:{value}" for by_algorithm in archive_hashes for name, value in by_algorithm.items())
            )
            pins[package.name] = Pin(name=package.name, version=version, url=_url(archive), hashes=hashes)
    except (PylockValidationError, PylockSelectError) as error:
        raise ConfigurationError(f"{error}", where=where, hint="write it anew with the tool that made it") from error
    return pins, own


def _tags(markers: Mapping[str, str]) -> list[Tag] | None:
    """Return the tags of wheels for CPython with these markers; `None` for this interpreter."""
    if not markers:
        return None
    minor = tuple(map(int, markers["python_version"].split(".")))
    name = f"cp{minor[0]}{minor[1]}"
    return [*cpython_tags(minor), *compatible_tags(minor, name)]


def _url(archive: PackageVcs | PackageArchive | PackageWheel | PackageSdist) -> str:
    """Return the URL of a package that no index serves."""
    if isinstance(archive, PackageVcs):
        return repository_url(archive.url or "", archive.commit_id, archive.subdirectory or "", kind=archive.type)
    if isinstance(archive, PackageArchive):
        return archive.url or ""
    return ""
