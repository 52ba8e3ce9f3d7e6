"""Reader of poetry.lock.

It is a flat list; each entry states its interpreters and platforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from packaging.markers import InvalidMarker, Marker, default_environment
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import Pin, repository_url
from plumbline.schema.errors import ConfigurationError


def poetry_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins for this interpreter, and packages from folders.

    `extras` limits the groups; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    own: dict[str, str] = {}
    for entry in content.get("package", []):
        name = canonicalize_name(str(entry.get("name", "")))
        groups = [str(group) for group in entry.get("groups", ["main"])]
        chosen = [group for group in groups if group == "main" or extras is None or group in extras]
        if not chosen or not _holds(entry, chosen, extras, markers, f"{where}: package.{name}"):
            continue
        source = entry.get("source", {})
        if source.get("type") == "directory":
            own[name] = str(entry.get("version", ""))
            continue
        pin = _pin(entry, name, source)
        known = pins.setdefault(name, pin)
        if known.identity != pin.identity:
            what = f"{name} {known.shown} and {pin.shown} both apply here"
            raise ConfigurationError(
                what, where=where, key="package", hint="write it with Poetry 2, which adds markers"
            )
    return pins, own


def _holds(
    entry: dict[str, Any], groups: list[str], extras: tuple[str, ...] | None, markers: Mapping[str, str], where: str
) -> bool:  # fmt: skip
    """Return whether an entry applies to the interpreter.

    The platform, and the chosen groups and extras, count too.
    """
    python = markers.get("python_full_version", default_environment()["python_full_version"])
    try:
        if not SpecifierSet(_versions(entry)).contains(python, prereleases=True):
            return False
        given = entry.get("markers")
        if not given:
            return True
        by_group = given if isinstance(given, dict) else dict.fromkeys(groups, given)
        return any(group not in by_group or _met(str(by_group[group]), extras, markers) for group in groups)
    except (InvalidMarker, InvalidSpecifier) as error:
        raise ConfigurationError(f"cannot be read: {error}", where=where) from error


def _versions(entry: dict[str, Any]) -> str:
    versions = str(entry.get("python-versions", "*"))
    return "" if versions == "*" else versions


def _met(marker: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]) -> bool:
    """Return whether a marker holds.

    If `extras` is `None`, all extras count as chosen.
    """
    if "extra" not in marker:
        return Marker(marker).evaluate({**markers})
    names = extras if extras is not None else _extras_in(marker)
    return any(Marker(marker).evaluate({**markers, "extra": name}) for name in ("", *names))


def _extras_in(marker: str) -> tuple[str, ...]:
    words = marker.replace('"', "'").split("'")
    return tuple(after for before, after in pairwise(words) if before.strip().endswith("extra =="))


def _pin(entry: dict[str, Any], name: str, source: dict[str, Any]) -> Pin:
    url = ""
    if source.get("type") == "git":
        commit, folder = (str(source.get(key, "")) for key in ("resolved_reference", "subdirectory"))
        url = repository_url(str(source.get("url", "")), commit, folder)
    elif source.get("type") == "url":
        url = str(source.get("url", ""))
    hashes = tuple(sorted(str(file["hash"]) for file in entry.get("files", []) if "hash" in file))
    return Pin(name=name, version=str(entry.get("version", "")), url=url, hashes=() if "git+" in url else hashes)
