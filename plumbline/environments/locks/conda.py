"""Readers of conda-lock.yml and pixi.lock.

Packages from a Python index become pins; conda's own packages are listed beside them.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import REPOSITORY, Pin, referenced_url
from plumbline.environments.locks.requirements import version_in_url
from plumbline.environments.locks.selection import add_pin, chosen_names
from plumbline.schema.errors import ConfigurationError

Pins = tuple[dict[str, Pin], dict[str, str]]


def conda_platform() -> str:
    """Return conda's name for this platform, such as `linux-64`."""
    system = {"linux": "linux", "darwin": "osx", "win32": "win"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{system}-{'64' if machine in ('x86_64', 'amd64') else machine}"


def conda_lock_pins(content: dict[str, Any], where: str, extras: tuple[str, ...] | None) -> Pins:
    """Return the pip and conda packages of a conda-lock file.

    `extras` limits the categories; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    others: dict[str, str] = {}
    here = conda_platform()
    if "package" not in content:
        hint = "an environment.yml pins nothing: conda-lock -f environment.yml"
        raise ConfigurationError("lists no locked packages", where=where, key="package", hint=hint)
    entries = [entry for entry in content.get("package", []) if entry.get("platform") == here]
    if not entries:
        raise ConfigurationError(f"has no packages for {here}", where=where, hint=f"lock with --platform {here}")
    by_entry = [set(entry.get("categories") or [entry.get("category", "main")]) for entry in entries]
    chosen = {"main", *chosen_names(set().union(*by_entry), extras, where)}
    for entry, categories in zip(entries, by_entry, strict=True):
        if not chosen & categories:
            continue
        name = canonicalize_name(str(entry.get("name", "")))
        version = str(entry.get("version", ""))
        if entry.get("manager") != "pip":
            others[name] = version
            continue
        sha256 = str(entry.get("hash", {}).get("sha256", ""))
        _add(pins, where, name, version, url=str(entry.get("url", "")), sha256=sha256)
    return pins, others


def pixi_pins(content: dict[str, Any], where: str, extras: tuple[str, ...] | None) -> Pins:
    """Return the PyPI and conda packages of a pixi.lock file.

    `extras` names the environment; `None` means `default`.
    """
    environments = content.get("environments", {})
    if extras and len(extras) > 1:
        hint = "name one --extra"
        raise ConfigurationError("an environment is chosen alone", where=where, key="environments", hint=hint)
    chosen = extras[0] if extras else "default"
    here = conda_platform()
    if chosen not in environments or here not in environments[chosen].get("packages", {}):
        what = f"has no environment {chosen!r} for {here}"
        raise ConfigurationError(what, where=where, key="environments", hint="choose with --extra ENVIRONMENT")
    # Version 5 of the format has `kind` with `url` or `path` instead of the reference's own key.
    places = ("pypi", "conda", "url", "path")
    known = {str(entry[place]): entry for entry in content.get("packages", []) for place in places if entry.get(place)}
    pins: dict[str, Pin] = {}
    others: dict[str, str] = {}
    for reference in environments[chosen]["packages"][here]:
        url = str(reference.get("pypi") or reference.get("conda"))
        entry = known.get(url, {})
        if "conda" in reference:
            file = url.rpartition("/")[2].removesuffix(".conda").removesuffix(".tar.bz2")
            name, _, rest = file.rpartition("-")[0].rpartition("-")
            others[canonicalize_name(name)] = rest
            continue
        name = canonicalize_name(str(entry.get("name", "")))
        version = str(entry.get("version", "")) or version_in_url(url)
        if "://" not in url and not version_in_url(url):
            others[name] = version  # a folder of the team's own
            continue
        _add(pins, where, name, version, url=url, sha256=str(entry.get("sha256", "")))
    return pins, others


def _add(pins: dict[str, Pin], where: str, name: str, version: str, *, url: str, sha256: str) -> None:
    """Add the pin of a package archive or repository.

    An index serves the same archive by name and hash; only what has no version or no hash needs its URL.
    """
    if match := REPOSITORY.match(url):
        url = referenced_url(url.removeprefix("git+")) if match[1] == "git" and "#" in url else url
    elif version and sha256:
        url = ""
    path = "" if "://" in url else url
    add_pin(pins, where, name, version, url=url, path=path, hashes=(f"sha256:{sha256}",) if sha256 else ())
