"""Readers of conda-lock.yml and pixi.lock.

Packages from a Python index become pins; conda's own packages are listed beside them.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from typing import Any

from plumbline.environments.locks.model import REPOSITORY, LockEntry, archive_of, referenced_url
from plumbline.environments.locks.selection import Selection
from plumbline.schema.errors import ConfigurationError

_ARCHIVE = re.compile(r"([^/]+)-([^/-]+-[^/-]+)\.(?:conda|tar\.bz2)$")
"""Name, and version with build, of conda's archive: one version has builds with different libraries."""


def conda_platform() -> str:
    """Return conda's name for this platform, such as `linux-64`."""
    system = {"linux": "linux", "darwin": "osx", "win32": "win"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{system}-{'64' if machine in ('x86_64', 'amd64') else machine}"


def conda_lock_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the selected packages of a conda-lock file; its categories are chosen as extras are."""
    here, where = conda_platform(), selection.where
    if "package" not in content:
        hint = "an environment.yml pins nothing: conda-lock -f environment.yml"
        raise ConfigurationError("lists no locked packages", where=where, key="package", hint=hint)
    packages = [package for package in content["package"] if package.get("platform") == here]
    if not packages:
        raise ConfigurationError(f"has no packages for {here}", where=where, hint=f"lock with --platform {here}")
    by_package = [set(package.get("categories") or [package.get("category", "main")]) for package in packages]
    chosen = selection.names(set().union(*by_package), "main")
    for package, categories in zip(packages, by_package, strict=True):
        if chosen & categories:
            sha256 = package.get("hash", {}).get("sha256")
            is_conda = package.get("manager") != "pip"
            yield _entry(package, str(package.get("url", "")), sha256, is_elsewhere=is_conda)


def pixi_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the packages of one environment of a pixi.lock file, by default of `default`."""
    environments, where = content.get("environments", {}), selection.where
    if selection.extras and len(selection.extras) > 1:
        hint = "name one --extra"
        raise ConfigurationError("an environment is chosen alone", where=where, key="environments", hint=hint)
    chosen = selection.extras[0] if selection.extras else "default"
    here = conda_platform()
    if chosen not in environments or here not in environments[chosen].get("packages", {}):
        what = f"has no environment {chosen!r} for {here}"
        raise ConfigurationError(what, where=where, key="environments", hint="choose with --extra ENVIRONMENT")
    # Version 5 of the format has `kind` with `url` or `path` instead of the reference's own key.
    places = ("pypi", "conda", "url", "path")
    known = {str(entry[place]): entry for entry in content.get("packages", []) for place in places if entry.get(place)}
    for reference in environments[chosen]["packages"][here]:
        url = str(reference.get("pypi") or reference.get("conda"))
        package = known.get(url, {})
        is_folder = "://" not in url and not archive_of(url)[1]
        yield _entry(package, url, package.get("sha256"), is_elsewhere="conda" in reference or is_folder)


def _entry(package: dict[str, Any], url: str, sha256: object, *, is_elsewhere: bool) -> LockEntry:
    """Return the entry of a package archive, a repository or a folder.

    An index serves the same archive by name and hash; only what has no version or no hash needs its URL.
    """
    name, version = str(package.get("name", "")), str(package.get("version", "")) or archive_of(url)[1]
    if match := REPOSITORY.match(url):
        url = referenced_url(url.removeprefix("git+")) if match[1] == "git" and "#" in url else url
    elif is_elsewhere and (archive := _ARCHIVE.search(url)):
        name, version = archive.groups()
    elif version and sha256:
        url = ""
    path = "" if "://" in url else url
    return LockEntry(name, version, url, path, [f"sha256:{sha256}"] if sha256 else (), is_elsewhere)
