"""Reader of poetry.lock.

It is a flat list; each entry states its interpreters and platforms. Poetry 2 states extras and groups by markers and
`groups`; Poetry 1 by `optional`, by `category`, and by the names that each of `[extras]` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import LockEntry, repository_url
from plumbline.environments.locks.selection import Selection, extras_in
from plumbline.schema.errors import ConfigurationError

_MAIN = "main"
_FIELDS = {
    "package": frozenset({
        "name", "version", "description", "optional", "category", "python-versions", "groups", "markers", "files",
        "dependencies", "extras", "source", "develop",
    }),
    "metadata": frozenset({"lock-version", "python-versions", "content-hash", "files"}),
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def poetry_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the selected packages; groups are chosen as extras are."""
    metadata, packages = content.get("metadata", {}), content.get("package", [])
    _check_fields("metadata", [metadata], selection.where)
    _check_fields("package", packages, selection.where)
    selection.check_interpreter(str(metadata.get("python-versions", "*")))
    by_package = [_markers(package) for package in packages]
    known = {name for markers in by_package for name in markers} | set(content.get("extras", {}))
    known |= {name for markers in by_package for marker in markers.values() for name in extras_in(marker)}
    chosen = selection.names(known, _MAIN)
    wanted = [name for extra, names in content.get("extras", {}).items() if extra in chosen for name in names]
    by_extra = _reached(packages, wanted)
    for package, markers in zip(packages, by_package, strict=True):
        is_left_out = _is_optional(package) and canonicalize_name(str(package.get("name"))) not in by_extra
        if not is_left_out and selection.has_python(str(package.get("python-versions", "*"))):
            applying = [marker for group, marker in markers.items() if group in chosen]
            if any(selection.holds(marker, chosen) for marker in applying):
                yield _entry(package, metadata.get("files", {}))
            for marker in applying:
                selection.check_all(marker)


def _check_fields(table: str, entries: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raise for a field that this reader does not know: it may change what is installed."""
    for entry in entries:
        for name in entry.keys() - _FIELDS[table]:
            hint = "lock with Poetry 1.1 to 2.x, or `poetry export -o requirements.txt`"
            raise ConfigurationError(
                "is not a field that this reader knows", where=where, key=f"{table}.{name}", hint=hint
            )


def _is_optional(package: Mapping[str, Any]) -> bool:
    """Return whether only extras install a package; with `groups`, its markers say which."""
    return bool(package.get("optional")) and "groups" not in package


def _reached(packages: Iterable[Mapping[str, Any]], names: Iterable[str]) -> set[str]:
    """Return the names of these packages and of all that they depend on; a name may have a range of versions."""
    depends: dict[str, set[str]] = {}
    for package in packages:
        depends.setdefault(canonicalize_name(str(package.get("name"))), set()).update(package.get("dependencies", ()))
    found: set[str] = set()
    queue = [match[0] for name in names if (match := _NAME.match(str(name)))]
    while queue:
        name = canonicalize_name(queue.pop())
        if name not in found:
            found.add(name)
            queue += depends.get(name, ())
    return found


def _markers(package: dict[str, Any]) -> dict[str, str]:
    """Return the marker of each dependency group of a package, "" for none."""
    given = package.get("markers") or ""
    groups = [str(group) for group in package.get("groups", [package.get("category", _MAIN)])]
    return {group: str(given.get(group) or "") if isinstance(given, dict) else str(given) for group in groups}


def _entry(package: dict[str, Any], files: Mapping[str, Any]) -> LockEntry:
    """Return a package's entry; before Poetry 1.3 the lock's metadata held the `files` of all packages."""
    source = package.get("source", {})
    kind, url = source.get("type"), str(source.get("url", ""))
    if kind == "git":
        url = repository_url(url, str(source.get("resolved_reference", "")), str(source.get("subdirectory", "")))
    own_files = package.get("files") or files.get(str(package.get("name")), [])
    return LockEntry(
        str(package.get("name", "")), str(package.get("version", "")), url=url if kind in ("git", "url") else "",
        path=url if kind == "file" else "", is_elsewhere=kind == "directory",
        hashes=(file["hash"] for file in own_files if "hash" in file),
    )  # fmt: skip
