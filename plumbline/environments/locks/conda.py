"""Readers of conda-lock.yml and pixi.lock.

Packages from a Python index become pins; conda's own packages are listed beside them.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import Pin, referenced_url
from plumbline.environments.locks.requirements import version_in_url
from plumbline.schema.errors import ConfigurationError

Pins = tuple[dict[str, Pin], dict[str, str]]


def conda_platform() -> str:
    """Return conda's name of this platform, such as `linux-64`."""
    system = {"linux": "linux", "darwin": "osx", "win32": "win"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{system}-{'64' if machine in ('x86_64', 'amd64') else machine}"


def conda_lock_pins(content: dict[str, Any], where: str, extras: tuple[str, ...] | None) -> Pins:
    """Return pip's and conda's packages of a conda-lock file.

    `extras` limits the categories; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    others: dict[str, str] = {}
    here = conda_platform()
    entries = [entry for entry in content.get("package", []) if entry.get("platform") == here]
    if not entries:
        raise ConfigurationError(f"has no packages for {here}", where=where, hint=f"lock with --platform {here}")
    for entry in entries:
        categories = entry.get("categories") or [entry.get("category", "main")]
        if extras is not None and not {"main", *extras} & set(categories):
            continue
        name = canonicalize_name(str(entry.get("name", "")))
        version = str(entry.get("version", ""))
        if entry.get("manager") != "pip":
            others[name] = version
            continue
        hashes = tuple(f"{kind}:{value}" for kind, value in entry.get("hash", {}).items() if kind == "sha256")
        pins[name] = Pin(name=name, version=version, hashes=hashes)
    return pins, others


def pixi_pins(content: dict[str, Any], where: str, extras: tuple[str, ...] | None) -> Pins:
    """Return the PyPI and conda packages of a pixi.lock.

    `extras` names the environment; `None` means `default`.
    """
    environments = content.get("environments", {})
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
        if "://" not in url:
            others[name] = version  # a folder of the team's own
            continue
        if url.startswith("git+"):
            pins[name] = Pin(name=name, version=version, url=referenced_url(url.removeprefix("git+")))
            continue
        hashes = (f"sha256:{entry['sha256']}",) if "sha256" in entry else ()
        # An index serves the same archive by name and hash; only what has no version needs its URL.
        pins[name] = Pin(name=name, version=version, url="" if version else url, hashes=hashes)
    return pins, others
