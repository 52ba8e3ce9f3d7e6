"""Package differences between two locks, releases in between, and dependencies among changes.

Changes that need each other, by the packages' metadata, are never tried apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import Field

from plumbline.environments.installed import Installed
from plumbline.environments.locks.model import Pin
from plumbline.schema.base import Model


class PackageChange(Model):
    """One package with different pins in two locks.

    A side is `None` if that lock does not contain the package.
    """

    package: str
    current: Pin | None
    candidate: Pin | None

    def __str__(self) -> str:
        current, candidate = (pin.shown if pin else "absent" for pin in (self.current, self.candidate))
        return f"{self.package} {current} → {candidate}{' (different archives)' if current == candidate else ''}"


class Failure(Model):
    """Reason why changes cannot be installed or cannot train.

    Code does not read `message`.
    """

    stage: Literal["install", "resolve", "import", "training"]
    package: str = ""
    """The package that the installer or the metadata names."""
    library: str = Field(default="", max_length=200)
    """Of `import`: the library whose code failed."""
    exception: str = Field(default="", max_length=200)
    """Of `import`: the exception's type."""
    message: str = Field(default="", max_length=4000)


def changes_between(current: Mapping[str, Pin], candidate: Mapping[str, Pin]) -> tuple[PackageChange, ...]:
    """Return the changed, added and removed packages between locks.

    A package has changed if its version or source differs, or if no archive has a hash in both locks.
    """
    changes = []
    for package in sorted({*current, *candidate}):
        left, right = current.get(package), candidate.get(package)
        if left is None or right is None or not left.may_equal(right):
            changes.append(PackageChange(package=package, current=left, candidate=right))
    return tuple(changes)


def has_releases(change: PackageChange) -> bool:
    """Return whether both pins are releases from a package index."""
    pins = (change.current, change.candidate)
    return all(pin is not None and pin.version and not pin.url for pin in pins)


def pins_between(change: PackageChange, versions: Iterable[str]) -> tuple[Pin, ...]:
    """Return the releases strictly between both pins.

    They are in the direction of the change.
    """
    if change.current is None or change.candidate is None:
        return ()
    try:
        current, candidate = Version(change.current.version), Version(change.candidate.version)
    except InvalidVersion:
        return ()
    low, high = sorted((current, candidate))
    between = sorted({version for version in _parsed(versions) if low < version < high}, reverse=candidate < current)
    # An index lists no local labels: `1.0` is the release of an installed `1.0+cpu`.
    return tuple(
        Pin(name=change.package, version=str(version))
        for version in between
        if str(version) not in (low.public, high.public)
    )


def _parsed(versions: Iterable[str]) -> Iterable[Version]:
    for text in versions:
        try:
            yield Version(text)
        except InvalidVersion:
            continue


Packages = Mapping[str, Installed]


def needed_changes(
    changes: Mapping[str, PackageChange], current: Packages, candidate: Packages
) -> dict[str, frozenset[str]]:
    """Map each package change to the other changes that it requires.

    Without them it breaks a requirement that holds with all changes. `current` is what is installed now, `candidate`
    the changed packages as the candidate lock has them.
    """
    after = {**current, **candidate}
    for name, change in changes.items():
        if change.candidate is None:
            after.pop(name, None)
    needs: dict[str, set[str]] = {name: set() for name in changes}
    for owner, target in _mixed(changes, current, candidate, after):
        needs[owner].add(target)
    return {name: frozenset(needed) for name, needed in needs.items()}


def _mixed(
    changes: Mapping[str, PackageChange], current: Packages, candidate: Packages, after: Packages
) -> Iterator[tuple[str, str]]:
    """Yield pairs of changes where the first requires the second."""
    for name in changes:
        new = candidate.get(name)
        for requirement in _active(new):
            target = canonicalize_name(requirement.name)
            # Its new release needs the other's new release: it breaks with the old one.
            if target in changes and _met(requirement, after) and not _met(requirement, current):
                yield name, target
    for owner, package in current.items():
        for requirement in _active(package):
            target = canonicalize_name(requirement.name)
            if target not in changes or not _met(requirement, current) or _met(requirement, after):
                continue
            # The other's new release breaks the owner's old one: they move together, or the owner goes.
            if owner in changes:
                yield target, owner


def conflicts(current: Packages, after: Packages) -> Iterator[tuple[str, str]]:
    """Yield (package, reason) for each requirement that the changes break.

    The candidate breaks it, and the current environment meets it. The package is the one that changed: the required
    package, if the one that requires it is unchanged.
    """
    for owner, package in sorted(after.items()):
        for requirement in _active(package):
            if _met(requirement, after):
                continue
            name = canonicalize_name(requirement.name)
            if not _was_broken(current, owner, name):
                target = after.get(name)
                has = f"has {target.version}" if target else "does not contain it"
                bare = Requirement(str(requirement))
                bare.marker = None
                before = current.get(owner)
                is_unchanged = before is not None and before.version == package.version
                yield name if is_unchanged else owner, f"{owner} {package.version} requires {bare}, the candidate {has}"


def _was_broken(current: Packages, owner: str, target: str) -> bool:
    """Return whether the requirement was already broken before the change.

    It is any requirement of `owner` on `target` in the current environment.
    """
    return any(
        canonicalize_name(requirement.name) == target and not _met(requirement, current)
        for requirement in _active(current.get(owner))
    )


def _active(package: Installed | None) -> tuple[Requirement, ...]:
    return package.requirements if package else ()


def _met(requirement: Requirement, packages: Packages) -> bool:
    installed = packages.get(canonicalize_name(requirement.name))
    if installed is None:
        return False
    try:
        return requirement.url is not None or requirement.specifier.contains(installed.version, prereleases=True)
    except InvalidVersion:
        return True
