"""Reader of uv.lock.

It is a graph of packages, followed from the project along the edges whose markers hold here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import Pin, referenced_url
from plumbline.environments.locks.requirements import version_in_url
from plumbline.schema.errors import ConfigurationError

_OWN = ("virtual", "editable", "directory")
"""Sources of packages in the project itself; they are the team's code, not a release."""


def uv_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins, and the project's own packages.

    `extras` limits extras and groups; `None` takes all.
    """
    packages: dict[str, list[dict[str, Any]]] = {}
    for entry in content.get("package", []):
        packages.setdefault(canonicalize_name(str(entry.get("name", ""))), []).append(entry)
    roots = [entry for entries in packages.values() for entry in entries if _is_own(entry)]
    if not roots:
        raise ConfigurationError("names no project", where=where, key="package", hint="write it with `uv lock`")
    pins: dict[str, Pin] = {}
    own: dict[str, str] = {}
    queue = [(root, _root_extras(root, extras), True) for root in roots]
    seen: set[tuple[str, str, str]] = set()
    while queue:
        entry, chosen, is_root = queue.pop()
        name = canonicalize_name(str(entry["name"]))
        new = [extra for extra in ("", *chosen) if (name, str(entry.get("version")), extra) not in seen]
        seen.update((name, str(entry.get("version")), extra) for extra in new)
        if not new:
            continue
        if _is_own(entry):
            own[name] = str(entry.get("version", ""))
        else:
            _add(pins, _pin(entry, name), where)
        edges = _edges(entry, new, is_root=is_root, groups=extras)
        queue.extend(
            (_target(packages, edge, where), tuple(edge.get("extra", ())), False)
            for edge in edges
            if _holds(edge.get("marker"), where, markers)
        )
    return pins, own


def _is_own(entry: dict[str, Any]) -> bool:
    return any(kind in entry.get("source", {}) for kind in _OWN)


def _root_extras(root: dict[str, Any], extras: tuple[str, ...] | None) -> tuple[str, ...]:
    known = tuple(root.get("optional-dependencies", {}))
    return known if extras is None else tuple(extra for extra in known if extra in extras)


def _edges(
    entry: dict[str, Any], extras: list[str], *, is_root: bool, groups: tuple[str, ...] | None
) -> Iterator[dict[str, Any]]:
    if "" in extras:
        yield from entry.get("dependencies", [])
    for extra in extras:
        yield from entry.get("optional-dependencies", {}).get(extra, [])
    if is_root and "" in extras:
        for group, edges in entry.get("dev-dependencies", {}).items():
            if groups is None or group in groups:
                yield from edges


def _holds(marker: Any, where: str, markers: Mapping[str, str]) -> bool:
    if not marker:
        return True
    try:
        return Marker(str(marker)).evaluate({**markers, "extra": ""})
    except InvalidMarker as error:
        raise ConfigurationError(f"{marker!r} is no marker", where=where, key="package.dependencies") from error


def _target(packages: dict[str, list[dict[str, Any]]], edge: dict[str, Any], where: str) -> dict[str, Any]:
    name = canonicalize_name(str(edge.get("name", "")))
    keys = ("version", "source")
    fitting = [
        entry for entry in packages.get(name, []) if all(edge[key] == entry.get(key) for key in keys if key in edge)
    ]
    if len(fitting) != 1:
        what = f"{name!r} is {'missing' if not fitting else 'ambiguous'}"
        raise ConfigurationError(what, where=where, key="package", hint="write it anew with `uv lock`")
    return fitting[0]


def _pin(entry: dict[str, Any], name: str) -> Pin:
    source = entry.get("source", {})
    url = str(source.get("url", ""))
    if "git" in source:
        url = referenced_url(str(source["git"]))
    archives = [entry.get("sdist"), *entry.get("wheels", [])]
    hashes = tuple(sorted(str(archive["hash"]) for archive in archives if archive and "hash" in archive))
    version = str(entry.get("version", "")) or version_in_url(url)
    return Pin(name=name, version=version, url=url, hashes=() if "git" in source else hashes)


def _add(pins: dict[str, Pin], pin: Pin, where: str) -> None:
    known = pins.setdefault(pin.name, pin)
    if known.identity != pin.identity:
        what = f"{pin.name} {known.shown} and {pin.shown} both apply here: extras or groups conflict"
        raise ConfigurationError(what, where=where, key="package", hint="choose with --extra NAME")
