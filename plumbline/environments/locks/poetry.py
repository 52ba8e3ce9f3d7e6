"""Reader of poetry.lock.

It is a flat list; each entry states its interpreters and platforms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from plumbline.environments.locks.model import LockEntry, repository_url
from plumbline.environments.locks.selection import Selection, extras_in

_MAIN = "main"


def poetry_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the selected packages; groups are chosen as extras are."""
    selection.check_interpreter(str(content.get("metadata", {}).get("python-versions", "*")))
    packages = content.get("package", [])
    by_package = [_markers(package) for package in packages]
    known = {name for markers in by_package for name in markers} | set(content.get("extras", {}))
    known |= {name for markers in by_package for marker in markers.values() for name in extras_in(marker)}
    chosen = selection.names(known, _MAIN)
    for package, markers in zip(packages, by_package, strict=True):
        if selection.has_python(str(package.get("python-versions", "*"))):
            applying = [marker for group, marker in markers.items() if group in chosen]
            if any(selection.holds(marker, chosen) for marker in applying):
                yield _entry(package)
            for marker in applying:
                selection.check_all(marker)


def _markers(package: dict[str, Any]) -> dict[str, str]:
    """Return the marker of each dependency group of a package, "" for none."""
    given = package.get("markers") or ""
    groups = [str(group) for group in package.get("groups", [_MAIN])]
    return {group: str(given.get(group) or "") if isinstance(given, dict) else str(given) for group in groups}


def _entry(package: dict[str, Any]) -> LockEntry:
    source = package.get("source", {})
    kind, url = source.get("type"), str(source.get("url", ""))
    if kind == "git":
        url = repository_url(url, str(source.get("resolved_reference", "")), str(source.get("subdirectory", "")))
    return LockEntry(
        str(package.get("name", "")), str(package.get("version", "")), url=url if kind in ("git", "url") else "",
        path=url if kind == "file" else "", is_elsewhere=kind == "directory",
        hashes=(file["hash"] for file in package.get("files", []) if "hash" in file),
    )  # fmt: skip
