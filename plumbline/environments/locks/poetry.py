"""Reader of poetry.lock.

It is a flat list; each entry states its interpreters and platforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import Pin, repository_url
from plumbline.environments.locks.selection import (
    add_pin,
    check_interpreter,
    chosen_names,
    extras_in,
    has_python,
    marker_holds,
)

_MAIN = "main"


def poetry_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins for this interpreter, and the packages from local folders.

    `extras` limits the groups; `None` takes all.
    """
    pins: dict[str, Pin] = {}
    own: dict[str, str] = {}
    check_interpreter(str(content.get("metadata", {}).get("python-versions", "*")), (), where, markers)
    entries = content.get("package", [])
    known = {group for entry in entries for group in _groups(entry)} | set(content.get("extras", {}))
    known |= {name for entry in entries for marker in _markers(entry).values() for name in extras_in(marker)}
    chosen = chosen_names(known - {_MAIN}, extras and tuple(name for name in extras if name != _MAIN), where)
    for entry in entries:
        name = canonicalize_name(str(entry.get("name", "")))
        if not _holds(entry, {_MAIN, *chosen}, markers, f"{where}: package.{name}", is_all=extras is None):
            continue
        if entry.get("source", {}).get("type") == "directory":
            own[name] = str(entry.get("version", ""))
        else:
            _add(pins, entry, name, where)
    return pins, own


def _groups(entry: dict[str, Any]) -> list[str]:
    return [str(group) for group in entry.get("groups", [_MAIN])]


def _markers(entry: dict[str, Any]) -> dict[str, str]:
    """Return the marker of each dependency group of an entry, if any."""
    given = entry.get("markers") or {}
    return given if isinstance(given, dict) else dict.fromkeys(_groups(entry), str(given))


def _holds(entry: dict[str, Any], chosen: set[str], markers: Mapping[str, str], where: str, *, is_all: bool) -> bool:
    """Return whether an entry applies to the interpreter, the platform, and the chosen groups and extras."""
    if not has_python(str(entry.get("python-versions", "*")), where, markers):
        return False
    by_group = _markers(entry)
    return any(
        marker_holds(by_group.get(group), where, markers, chosen, is_all=is_all)
        for group in _groups(entry)
        if group in chosen
    )


def _add(pins: dict[str, Pin], entry: dict[str, Any], name: str, where: str) -> None:
    source = entry.get("source", {})
    kind, url = source.get("type"), str(source.get("url", ""))
    if kind == "git":
        url = repository_url(url, str(source.get("resolved_reference", "")), str(source.get("subdirectory", "")))
    add_pin(
        pins, where, name, str(entry.get("version", "")), url=url if kind in ("git", "url") else "",
        path=url if kind == "file" else "", hashes=(file["hash"] for file in entry.get("files", []) if "hash" in file),
        hint="choose with --extra NAME; write it with Poetry 2, which adds markers",
    )  # fmt: skip
