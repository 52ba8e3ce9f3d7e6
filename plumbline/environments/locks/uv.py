"""Reader of uv.lock.

It is a graph of packages, followed from the project along the edges whose markers hold here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import LockEntry, referenced_url
from plumbline.environments.locks.selection import CHOOSE, Selection
from plumbline.schema.errors import ConfigurationError

Package = dict[str, Any]

_OWN = ("virtual", "editable", "directory")
"""Sources of packages in the project itself; they are the team's code, not a release."""
_CHOICES = ("optional-dependencies", "dev-dependencies")


def uv_entries(content: dict[str, Any], selection: Selection) -> Iterator[LockEntry]:
    """Yield the packages that the project reaches; groups are chosen as extras are."""
    selection.check_interpreter(content.get("requires-python", "*"), content.get("supported-markers", ()))
    packages: dict[str, list[Package]] = {}
    for package in content.get("package", []):
        packages.setdefault(canonicalize_name(str(package.get("name", ""))), []).append(package)
    roots = [package for packages_of_name in packages.values() for package in packages_of_name if _is_own(package)]
    manifest = content.get("manifest", {})
    if {"requirements", "dependency-groups"} & manifest.keys():  # a script, or a workspace without a project
        groups = manifest.get("dependency-groups", {})
        roots.append({"name": "", "dependencies": manifest.get("requirements", []), "dev-dependencies": groups})
    if not roots:
        hint = "write it with `uv lock`"
        raise ConfigurationError("names no project", where=selection.where, key="package", hint=hint)
    known = {name for root in roots for kind in _CHOICES for name in root.get(kind, {})}
    graph = _Graph(packages, roots, selection.names(known), selection)
    yield from map(_entry, graph.reached(content.get("conflicts", [])))


@dataclass(frozen=True, slots=True)
class _Graph:
    """Dependency graph of a uv.lock file."""

    packages: dict[str, list[Package]]
    roots: list[Package]
    chosen: frozenset[str]
    selection: Selection
    active: set[str] = field(default_factory=set)
    """Extras, groups and projects that the walk reaches, as uv names them in markers of conflicts."""

    def reached(self, conflicts: Sequence[Sequence[Mapping[str, str]]]) -> list[Package]:
        """Return all packages that are reached; raise `ConfigurationError` for conflicting extras."""
        num_active = -1
        while len(self.active) != num_active:  # an extra that the walk reaches may open other edges
            num_active = len(self.active)
            packages = self._walk()
        for conflict in conflicts:
            both = [item for item in conflict if _conflict_name(item) in self.active]
            if len(both) > 1:
                names = " and ".join(item.get("extra", item.get("group", item["package"])) for item in both)
                what = f"{names} conflict"
                raise ConfigurationError(what, where=self.selection.where, key="conflicts", hint=CHOOSE)
        return packages

    def _walk(self) -> list[Package]:
        """Return the packages reachable through active dependencies, and collect active extras."""
        reached: list[Package] = []
        queue = [(root, tuple(self.chosen), True) for root in self.roots]
        seen: set[tuple[str, str, str]] = set()
        while queue:
            package, extras, is_root = queue.pop()
            name = str(package["name"])
            new = [extra for extra in ("", *extras) if (name, str(package.get("version")), extra) not in seen]
            seen.update((name, str(package.get("version")), extra) for extra in new)
            if "" in new and name:
                reached.append(package)
            queue.extend(
                (self._target(edge), tuple(edge.get("extra") or edge.get("extras") or ()), False)
                for edge in self._edges(package, new, is_root=is_root)
                if self.selection.holds(edge.get("marker"), self.active)
            )
        return reached

    def _edges(self, package: Package, extras: list[str], *, is_root: bool) -> Iterator[Package]:
        own = {"package": str(package["name"])}
        optional, groups = package.get("optional-dependencies", {}), package.get("dev-dependencies", {})
        sections = [({**own, "extra": extra}, optional[extra]) for extra in extras if extra in optional]
        if "" in extras:
            sections.append((own, package.get("dependencies", [])))
            chosen = self.chosen.intersection(groups) if is_root else ()
            sections += [({**own, "group": group}, groups[group]) for group in sorted(chosen)]
        for item, edges in sections:
            self.active.add(_conflict_name(item))
            yield from edges

    def _target(self, edge: Package) -> Package:
        name = canonicalize_name(str(edge.get("name", "")))
        fitting = [
            package
            for package in self.packages.get(name, [])
            if all(edge[key] == package.get(key) for key in ("version", "source") if key in edge)
        ]
        if len(fitting) > 1:  # forks of the resolution
            forks = [(package, package.get("resolution-markers", [""])) for package in fitting]
            fitting = [
                package for package, markers in forks if any(self.selection.holds(m, self.active) for m in markers)
            ]
        if len(fitting) != 1:
            what = f"{name!r} is {'missing' if not fitting else 'ambiguous'}"
            raise ConfigurationError(
                what, where=self.selection.where, key="package", hint="write it anew with `uv lock`"
            )
        return fitting[0]


def _is_own(package: Package) -> bool:
    return any(kind in package.get("source", {}) for kind in _OWN)


def _conflict_name(item: Mapping[str, str]) -> str:
    """Return the extra that encodes a conflict item in uv's markers."""
    package = item["package"]
    kind = next((kind for kind in ("extra", "group") if kind in item), "")
    return f"{kind or 'project'}-{len(package)}-{package}" + (f"-{item[kind]}" if kind else "")


def _entry(package: Package) -> LockEntry:
    source = package.get("source", {})
    url = referenced_url(str(source["git"])) if "git" in source else str(source.get("url", ""))
    archives = [package.get("sdist"), *package.get("wheels", [])]
    hashes = [str(archive["hash"]) for archive in archives if archive and "hash" in archive]
    version, path = str(package.get("version", "")), str(source.get("path", ""))
    return LockEntry(package["name"], version, url, path, hashes, is_elsewhere=_is_own(package))
