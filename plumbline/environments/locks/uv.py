"""Reader of uv.lock.

It is a graph of packages, followed from the project along the edges whose markers hold here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import Pin, referenced_url
from plumbline.environments.locks.selection import CHOOSE, add_pin, check_interpreter, chosen_names, marker_holds
from plumbline.schema.errors import ConfigurationError

Entry = dict[str, Any]

_OWN = ("virtual", "editable", "directory")
"""Sources of packages in the project itself; they are the team's code, not a release."""
_CHOICES = ("optional-dependencies", "dev-dependencies")


def uv_pins(
    content: dict[str, Any], where: str, extras: tuple[str, ...] | None, markers: Mapping[str, str]
) -> tuple[dict[str, Pin], dict[str, str]]:
    """Return the pins, and the project's own packages.

    `extras` limits extras and groups; `None` takes all.
    """
    check_interpreter(content.get("requires-python", "*"), content.get("supported-markers", ()), where, markers)
    packages: dict[str, list[Entry]] = {}
    for entry in content.get("package", []):
        packages.setdefault(canonicalize_name(str(entry.get("name", ""))), []).append(entry)
    roots = [entry for entries in packages.values() for entry in entries if _is_own(entry)]
    manifest = content.get("manifest", {})
    if (
        "requirements" in manifest or "dependency-groups" in manifest
    ):  # of a script, or of a workspace without a project
        groups = manifest.get("dependency-groups", {})
        roots.append({"name": "", "dependencies": manifest.get("requirements", []), "dev-dependencies": groups})
    if not roots:
        raise ConfigurationError("names no project", where=where, key="package", hint="write it with `uv lock`")
    known = {name for root in roots for kind in _CHOICES for name in root.get(kind, {})}
    lock = _UvLock(packages, roots, chosen_names(known, extras, where), where, markers)
    return lock.pins(content.get("conflicts", []))


class _UvLock:
    """Dependency graph of a uv.lock file."""

    def __init__(
        self, packages: dict[str, list[Entry]], roots: list[Entry], chosen: frozenset[str], where: str,
        markers: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._packages = packages
        self._roots = roots
        self._chosen = chosen
        self._where = where
        self._markers = markers
        self._active: set[str] = set()
        """Extras, groups and projects that the walk reaches, as uv names them in markers of conflicts."""

    def pins(self, conflicts: Sequence[Sequence[Mapping[str, str]]]) -> tuple[dict[str, Pin], dict[str, str]]:
        """Return pins and the project's packages; raise `ConfigurationError` for conflicting extras."""
        num_active = -1
        while len(self._active) != num_active:  # an extra that the walk reaches may open other edges
            num_active = len(self._active)
            entries = self._walk()
        for conflict in conflicts:
            both = [item for item in conflict if _conflict_name(item) in self._active]
            if len(both) > 1:
                names = " and ".join(item.get("extra", item.get("group", item["package"])) for item in both)
                raise ConfigurationError(f"{names} conflict", where=self._where, key="conflicts", hint=CHOOSE)
        pins: dict[str, Pin] = {}
        for entry in entries:
            if not _is_own(entry):
                _add(pins, entry, self._where)
        return pins, {str(entry["name"]): str(entry.get("version", "")) for entry in entries if _is_own(entry)}

    def _walk(self) -> list[Entry]:
        """Return the packages reachable through active dependencies, and collect active extras."""
        reached: list[Entry] = []
        queue = [(root, tuple(self._chosen), True) for root in self._roots]
        seen: set[tuple[str, str, str]] = set()
        while queue:
            entry, extras, is_root = queue.pop()
            name = str(entry["name"])
            new = [extra for extra in ("", *extras) if (name, str(entry.get("version")), extra) not in seen]
            seen.update((name, str(entry.get("version")), extra) for extra in new)
            if "" in new and name:
                reached.append(entry)
            queue.extend(
                (self._target(edge), tuple(edge.get("extra") or edge.get("extras") or ()), False)
                for edge in self._edges(entry, new, is_root=is_root)
                if marker_holds(edge.get("marker"), self._where, self._markers, self._active)
            )
        return reached

    def _edges(self, entry: Entry, extras: list[str], *, is_root: bool) -> Iterator[Entry]:
        name = str(entry["name"])
        if "" in extras:
            self._active.add(_conflict_name({"package": name}))
            yield from entry.get("dependencies", [])
        for extra in extras:
            if extra in entry.get("optional-dependencies", {}):
                self._active.add(_conflict_name({"package": name, "extra": extra}))
                yield from entry["optional-dependencies"][extra]
        for group in sorted(self._chosen) if is_root and "" in extras else ():
            if group in entry.get("dev-dependencies", {}):
                self._active.add(_conflict_name({"package": name, "group": group}))
                yield from entry["dev-dependencies"][group]

    def _target(self, edge: Entry) -> Entry:
        name = canonicalize_name(str(edge.get("name", "")))
        fitting = [
            entry
            for entry in self._packages.get(name, [])
            if all(edge[key] == entry.get(key) for key in ("version", "source") if key in edge)
        ]
        if len(fitting) > 1:  # forks of the resolution
            fitting = [entry for entry in fitting if self._is_of_fork(entry)]
        if len(fitting) != 1:
            what = f"{name!r} is {'missing' if not fitting else 'ambiguous'}"
            raise ConfigurationError(what, where=self._where, key="package", hint="write it anew with `uv lock`")
        return fitting[0]

    def _is_of_fork(self, entry: Entry) -> bool:
        forks = entry.get("resolution-markers", [""])
        return any(marker_holds(marker, self._where, self._markers, self._active) for marker in forks)


def _is_own(entry: Entry) -> bool:
    return any(kind in entry.get("source", {}) for kind in _OWN)


def _conflict_name(item: Mapping[str, str]) -> str:
    """Return the extra that encodes a conflict item in uv's markers."""
    package = item["package"]
    kind = next((kind for kind in ("extra", "group") if kind in item), "")
    return f"{kind or 'project'}-{len(package)}-{package}" + (f"-{item[kind]}" if kind else "")


def _add(pins: dict[str, Pin], entry: Entry, where: str) -> None:
    source = entry.get("source", {})
    url = referenced_url(str(source["git"])) if "git" in source else str(source.get("url", ""))
    archives = [entry.get("sdist"), *entry.get("wheels", [])]
    hashes = [str(archive["hash"]) for archive in archives if archive and "hash" in archive]
    version, path = str(entry.get("version", "")), str(source.get("path", ""))
    add_pin(pins, where, entry["name"], version, url=url, path=path, hashes=hashes)
