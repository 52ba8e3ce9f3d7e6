"""Rules for all lock formats: extras, groups, markers, one pin per package."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import Marker, default_environment
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import REPOSITORY, LockEntry, Pin, archive_of
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite_file import suggest_or_list

_IS_EXTRA = re.compile(r"""\bextra\s*(?P<way>[!=]=)\s*(?P<name>'[^']*'|"[^"]*")""")
_EXTRA_IS = re.compile(r"""(?P<name>'[^']*'|"[^"]*")\s*(?P<way>[!=]=)\s*extra\b""")
_EXCLUDES = re.compile(r"\bnot\s+in\s+(extras|dependency_groups)\b|\bextra\s*!=|!=\s*extra\b")
_POETRY = (
    (r"(?:\^\s*(\d+)|~\s*(\d+\.\d+))([\d.]*)", r">=\1\2\3,==\1\2.*"),
    (r"(^|[,|])\s*(?=\d)", r"\1=="), (r"(^|\|)\s*\*", r"\1"),
)  # fmt: skip
"""Poetry's own signs in a range of Python's versions, such as `^3.11`, as PEP 440 has them."""
CHOOSE = "choose with --extra NAME"


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of a lock that is asked for: extras, and an interpreter."""

    where: str
    """The lock's name, for errors."""
    extras: tuple[str, ...] | None
    """Selected extras and groups; `None` for all."""
    markers: Mapping[str, str]
    """Values of markers that differ from this process's interpreter."""

    def names(self, known: Iterable[str], *defaults: str) -> frozenset[str]:
        """Return the selected extras or groups among those `known`, and the `defaults`, which every choice has.

        Raise `ConfigurationError` for a name that the lock does not have.
        """
        names = frozenset(known).difference(defaults)
        if self.extras is None:
            return names.union(defaults)
        by_name = {canonicalize_name(name): name for name in [*names, *defaults]}
        for name in self.extras:
            if canonicalize_name(name) not in by_name:
                hint = suggest_or_list(name, sorted(names)) if names else "it has none: leave out --extra"
                raise ConfigurationError(f"has no extra or group {name!r}", where=self.where, key="--extra", hint=hint)
        return frozenset(by_name[canonicalize_name(name)] for name in self.extras).union(defaults)

    def check_interpreter(self, python: str, environments: Sequence[str] = ()) -> None:
        """Raise `ConfigurationError` if a lock is for other interpreters: it lacks what only this one needs."""
        fits = [self.has_python(python), *map(self.holds, environments)]
        if not fits[0] or not any(fits[1:] or [True]):
            hint = "name the environment with --python, or lock for this one"
            what = " or ".join(environments) if fits[0] else f"Python {python}"
            raise ConfigurationError(f"is a lock for {what}, not for this interpreter", where=self.where, hint=hint)

    def has_python(self, versions: str) -> bool:
        """Return whether a range of Python's versions has the interpreter's."""
        version = str({**default_environment(), **self.markers}["python_full_version"])
        for sign, plain in _POETRY:
            versions = re.sub(sign, plain, versions)
        try:
            return any(SpecifierSet(part).contains(version, prereleases=True) for part in versions.split("||"))
        except InvalidSpecifier as error:
            raise ConfigurationError(f"cannot be read: {error}", where=self.where) from error

    def holds(self, marker: object, chosen: Collection[str] = ()) -> bool:
        """Return whether a marker is true with these extras selected.

        PEP 508 knows one extra at a time; a lock is installed with several, so `extra` is read as PEP 751's set.
        """
        if not marker:
            return True
        text = str(marker)
        for pattern in (_IS_EXTRA, _EXTRA_IS):
            text = pattern.sub(
                lambda found: f"{found['name']} {'in' if found['way'] == '==' else 'not in'} extras", text
            )
        try:
            return Marker(text).evaluate({**self.markers, "extras": frozenset(chosen)}, context="lock_file")
        except (ValueError, KeyError) as error:  # no marker, or one that cannot be evaluated
            what = f"{str(marker)[:200]!r} is not a marker"
            raise ConfigurationError(what, where=self.where, key="package") from error

    def check_all(self, marker: object) -> None:
        """Raise `ConfigurationError` if all extras are asked for, and a marker makes them mutually exclusive."""
        if self.extras is None and _EXCLUDES.search(str(marker or "")):
            what = f"extras or groups exclude each other: {marker}"
            raise ConfigurationError(what, where=self.where, hint=CHOOSE)

    def pins(self, entries: Iterable[LockEntry]) -> tuple[dict[str, Pin], dict[str, str]]:
        """Return the pins, and by name the versions of what no Python index serves. Repositories have no hash.

        Raise `ConfigurationError` for two pins of a package, and for an archive by its path on one machine.
        """
        pins: dict[str, Pin] = {}
        elsewhere: dict[str, str] = {}
        for entry in entries:
            if entry.is_elsewhere:
                elsewhere[canonicalize_name(entry.name)] = entry.version
                continue
            if entry.path:
                what = f"{entry.path} is a path of the machine that wrote the lock"
                raise ConfigurationError(what, where=self.where, key="package", hint="lock its URL")
            hashes = () if REPOSITORY.match(entry.url) else tuple(sorted(entry.hashes))
            version = entry.version or archive_of(entry.url)[1]
            pin = Pin(name=entry.name, version=version, url=entry.url, hashes=hashes)
            known = pins.setdefault(pin.name, pin)
            if not known.may_equal(pin):
                what = f"{pin.name} {known.shown} and {pin.shown} both apply here: extras or groups conflict"
                hint = f"{CHOOSE}; a new release of the lock's tool may write the markers that are missing"
                raise ConfigurationError(what, where=self.where, key="package", hint=hint)
        return pins, elsewhere


def extras_in(marker: str) -> set[str]:
    """Return the extras that a marker mentions."""
    matches = [*_IS_EXTRA.finditer(marker), *_EXTRA_IS.finditer(marker)]
    return {match["name"][1:-1] for match in matches}
