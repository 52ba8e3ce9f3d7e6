"""Rules for all lock formats: extras, groups, markers, one pin per package."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from packaging.markers import Marker, default_environment
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import REPOSITORY, Pin
from plumbline.environments.locks.requirements import version_in_url
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite_file import suggest_or_list

_IS_EXTRA = re.compile(r"""\bextra\s*(?P<way>[!=]=)\s*(?P<name>'[^']*'|"[^"]*")""")
_EXTRA_IS = re.compile(r"""(?P<name>'[^']*'|"[^"]*")\s*(?P<way>[!=]=)\s*extra\b""")
_EXCLUDES = re.compile(r"\bnot\s+in\s+(extras|dependency_groups)\b")
_POETRY = (
    (r"(?:\^\s*(\d+)|~\s*(\d+\.\d+))([\d.]*)", r">=\1\2\3,==\1\2.*"),
    (r"(^|[,|])\s*(?=\d)", r"\1=="), (r"(^|\|)\s*\*", r"\1"),
)  # fmt: skip
"""Poetry's own signs in a range of Python's versions, such as `^3.11`, as PEP 440 has them."""
CHOOSE = "choose with --extra NAME"


def chosen_names(known: Iterable[str], extras: tuple[str, ...] | None, where: str) -> frozenset[str]:
    """Return the selected extras or groups among those `known`.

    Raise `ConfigurationError` for a name that the lock does not have.
    """
    names = frozenset(known)
    by_name = {canonicalize_name(name): name for name in names}
    for name in extras or ():
        if canonicalize_name(name) not in by_name:
            hint = suggest_or_list(name, sorted(names)) if names else "it has none: leave out --extra"
            raise ConfigurationError(f"has no extra or group {name!r}", where=where, key="--extra", hint=hint)
    return names if extras is None else frozenset(by_name[canonicalize_name(name)] for name in extras)


def check_interpreter(python: str, environments: Sequence[str], where: str, markers: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if a lock is for other interpreters: it lacks what only this one needs."""
    fits = [has_python(python, where, markers), *(marker_holds(one, where, markers, ()) for one in environments)]
    if not fits[0] or not any(fits[1:] or [True]):
        hint = "name the environment with --python, or lock for this one"
        what = " or ".join(environments) if fits[0] else f"Python {python}"
        raise ConfigurationError(f"is a lock for {what}, not for this interpreter", where=where, hint=hint)


def has_python(versions: str, where: str, markers: Mapping[str, str]) -> bool:
    """Return whether a range of Python's versions has the interpreter's."""
    version = str({**default_environment(), **markers}["python_full_version"])
    for sign, plain in _POETRY:
        versions = re.sub(sign, plain, versions)
    try:
        return any(SpecifierSet(part).contains(version, prereleases=True) for part in versions.split("||"))
    except InvalidSpecifier as error:
        raise ConfigurationError(f"cannot be read: {error}", where=where) from error


def extras_in(marker: str) -> set[str]:
    """Return the extras that a marker mentions."""
    matches = [*_IS_EXTRA.finditer(marker), *_EXTRA_IS.finditer(marker)]
    return {match["name"][1:-1] for match in matches}


def marker_holds(
    marker: object, where: str, markers: Mapping[str, str], chosen: Collection[str], *, is_all: bool = False
) -> bool:
    """Return whether a marker is true with these extras selected.

    PEP 508 knows one extra at a time; a lock is installed with several, so `extra` is read as PEP 751's set. Raise
    `ConfigurationError` for a marker that excludes an extra where `is_all`: all together are not an environment.
    """
    if not marker:
        return True
    text = str(marker)
    for pattern in (_IS_EXTRA, _EXTRA_IS):
        text = pattern.sub(lambda found: f"{found['name']} {'in' if found['way'] == '==' else 'not in'} extras", text)
    try:
        holds = Marker(text).evaluate({**markers, "extras": frozenset(chosen)}, context="lock_file")
    except (ValueError, KeyError) as error:  # no marker, or one that cannot be evaluated
        raise ConfigurationError(f"{str(marker)[:200]!r} is not a marker", where=where, key="package") from error
    if is_all:
        check_excludes_none(text, where)
    return holds


def check_excludes_none(marker: str, where: str) -> None:
    """Raise `ConfigurationError` if a marker makes extras or groups mutually exclusive."""
    if _EXCLUDES.search(marker):
        raise ConfigurationError(f"extras or groups exclude each other: {marker}", where=where, hint=CHOOSE)


def add_pin(
    pins: dict[str, Pin], where: str, name: str, version: str, *, url: str = "", path: str = "",
    hashes: Iterable[str] = (), hint: str = CHOOSE,
) -> None:  # fmt: skip
    """Add a package's pin; repositories have no hash.

    Raise `ConfigurationError` if the lock has a different pin of it, or an archive by its path on one machine.
    """
    if path:
        what = f"{path} is a path of the machine that wrote the lock"
        raise ConfigurationError(what, where=where, key="package", hint="lock its URL")
    own = () if REPOSITORY.match(url) else tuple(sorted(hashes))
    pin = Pin(name=name, version=version or version_in_url(url), url=url, hashes=own)
    known = pins.setdefault(pin.name, pin)
    if known.identity != pin.identity:
        what = f"{pin.name} {known.shown} and {pin.shown} both apply here: extras or groups conflict"
        raise ConfigurationError(what, where=where, key="package", hint=hint)
