"""Reader of requirements.txt, following pip's rules.

It knows `-r`, `-c`, hashes, markers and direct URLs. pip offers no parser to others, and the one package that parses
the whole format has had no release since 2022. The file format is small and documented
(https://pip.pypa.io/en/stable/reference/requirements-file-format/), so lines and options are split here, and every
requirement, marker, version and URL is read by `packaging`. The installer that builds an environment reads the pins
again: a line that was split wrongly is refused there.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from plumbline.environments.locks.model import LockFiles, Pin, archive_of
from plumbline.environments.locks.selection import Selection
from plumbline.schema.errors import ConfigurationError

_COMMENT = re.compile(r"(^|\s)#.*$")
_INCLUDE = re.compile(r"^(?:-(?P<short>[rc])\s*|--(?P<long>requirement|constraint)(?:\s+|=))(?P<path>\S.*)$")
_HASH = re.compile(r"\s+--hash[=\s]\s*(?P<value>[A-Za-z0-9]+:[0-9a-fA-F]+)")
_OPTION = re.compile(r"\s+--(?:config-settings?|global-option)[=\s]\S+")
_EDITABLE = re.compile(r"^(?:-e\s*|--editable(?:\s+|=))(?P<target>\S.*)$")
_FOLDER = re.compile(r"^(?:[\w.\[\],-]+\s*@\s*)?(?P<target>(?:file://|\.{1,2}(?=$|[/\[;\s])|/)\S*)")
_ADDRESS = re.compile(r"[a-z]+://")
_EGG = re.compile(r"#(?:.*&)?egg=(?P<name>[A-Za-z0-9._-]+)")
_HINT = "write NAME==VERSION or NAME @ URL; a lock pins every package"
_EXACT = ("==", "===")
_CONDA_BUILD = re.compile(r"_\d{13}/")
"""Folder in which conda built a package, by its time in milliseconds; it exists on no machine afterwards."""


class _Line(NamedTuple):
    """Logical line of a file."""

    file: str
    number: int
    kind: Literal["include", "constraint", "folder", "option", "package"]
    text: str
    """A path for the first three kinds, an option's name, or a requirement."""


class _Use(NamedTuple):
    """Requirement of a line, or its constraint."""

    line: _Line
    is_bound: bool
    requirement: Requirement
    hashes: tuple[str, ...]
    pin: Pin | None
    """`None` for a range of versions."""

    def accepts(self, pin: Pin) -> bool:
        """Return whether the line allows this pin; a repository's version is unknown, and no range excludes it."""
        if self.pin and (self.requirement.url or not pin.version):
            return self.pin.identity == pin.identity
        return not pin.version or self.requirement.specifier.contains(pin.version, prereleases=True)


def _lines(file: str, text: str) -> Iterator[_Line]:
    """Yield each logical line. Continuation lines are joined; comments and blank lines are removed."""
    pending, start = "", 0
    for number, raw in enumerate([*text.splitlines(), ""], start=1):
        start = start if pending else number
        if raw.rstrip().endswith("\\") and not raw.lstrip().startswith("#"):
            pending += raw.rstrip()[:-1] + " "
            continue
        line, pending = _COMMENT.sub("", pending + raw).strip(), ""
        if line:
            yield _parsed(file, start, line)


def _parsed(file: str, number: int, line: str) -> _Line:
    """Return a logical line with its kind.

    Raise `ConfigurationError` for one of conda's, and for an editable repository without a name.
    """
    if line == "@EXPLICIT":
        hint = "conda serves all of them: write those of an index with `pip list --format=freeze`"
        raise ConfigurationError("lists URLs of conda's packages", where=file, hint=hint)
    if include := _INCLUDE.match(line):
        is_constraint = (include["short"] or include["long"]).startswith("c")
        path = include["path"].strip().strip("'\"")
        if "://" not in path:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        return _Line(file, number, "constraint" if is_constraint else "include", path)
    if editable := _EDITABLE.match(line):
        target = editable["target"].strip()
        if "+" not in target.partition("://")[0]:
            return _Line(file, number, "folder", target)
        # As `pip freeze` writes an editable install of a repository.
        if egg := _EGG.search(target):
            return _Line(file, number, "package", f"{egg['name']} @ {target}")
        hint = "add #egg=NAME behind the URL, as pip freeze does"
        raise ConfigurationError(f"line {number} names no package", where=file, hint=hint)
    if line.startswith("-"):
        return _Line(file, number, "option", re.split(r"[\s=]", line, maxsplit=1)[0])
    folder = _FOLDER.match(line)
    if folder and not archive_of(folder["target"])[1] and not _CONDA_BUILD.search(folder["target"]):
        return _Line(file, number, "folder", line)
    # uv exports an archive by its address alone; pip takes the name from the file's.
    name = archive_of(line.split(maxsplit=1)[0])[0] if _ADDRESS.match(line) else ""
    return _Line(file, number, "package", f"{name} @ {line}" if name else line)


def included_files(name: str, text: str) -> tuple[str, ...]:
    """Return the paths of the files that this file includes."""
    return tuple(line.text for line in _lines(name, text) if line.kind in ("include", "constraint"))


def unused_lines(files: LockFiles, kind: Literal["folder", "option"]) -> tuple[str, ...]:
    """Return the local folders that the files install from, or their options' names, without values.

    The machine decides where the installer looks, not a lock that comes from elsewhere.
    """
    lines = (line for name, text in files.files.items() for line in _lines(name, text))
    return tuple(dict.fromkeys(line.text for line in lines if line.kind == kind))


def requirement_pins(files: LockFiles, selection: Selection) -> dict[str, Pin]:
    """Return the pins of a file and of those that it includes.

    `ConfigurationError` names the line that does not pin a version.
    """
    pins: dict[str, Pin] = {}
    by_package: dict[str, list[_Use]] = {}
    for use in _uses(files, files.name):
        if selection.holds(use.requirement.marker):
            by_package.setdefault(canonicalize_name(use.requirement.name), []).append(use)
    for package, uses in by_package.items():
        needed = [use for use in uses if not use.is_bound]
        if not needed:
            continue  # a constraint alone installs nothing
        pinned = [use.pin for use in (*needed, *uses) if use.pin]
        if not pinned:
            where = needed[-1].line
            raise ConfigurationError(f"line {where.number} pins no version", where=where.file, hint=_HINT)
        pin = max(pinned, key=lambda pin: sum(use.accepts(pin) for use in uses))
        # pip takes an archive that all lines allow, or refuses; uv takes the last line's.
        hashed = [use for use in uses if use.hashes]
        common = set(hashed[0].hashes).intersection(*(use.hashes for use in hashed)) if hashed else set()
        excluding = [use.line for use in uses if not use.accepts(pin)] or [use.line for use in hashed if not common]
        if excluding:
            what = f"line {excluding[-1].number} excludes {package} {pin.shown}, which another line pins"
            raise ConfigurationError(what, where=excluding[-1].file, hint="keep one of them")
        pins[package] = Pin(name=package, version=pin.version, url=pin.url, hashes=tuple(sorted(common)))
    return pins


def _uses(files: LockFiles, name: str, *, is_bound: bool = False, seen: tuple[str, ...] = ()) -> Iterator[_Use]:
    """Yield the requirements and constraints of a file and of those that it includes."""
    if name in seen:
        raise ConfigurationError("includes itself", where=name, hint="remove the -r or -c line that leads back")
    if name not in files.files:
        raise ConfigurationError(f"includes {name!r}, which was not handed over", where=files.name)
    for line in _lines(name, files.files[name]):
        if line.kind in ("include", "constraint"):
            is_constraint = is_bound or line.kind == "constraint"
            yield from _uses(files, line.text, is_bound=is_constraint, seen=(*seen, name))
        elif line.kind == "package":
            hashes = tuple(match["value"].lower() for match in _HASH.finditer(f" {line.text}"))
            text = _OPTION.sub("", _HASH.sub("", f" {line.text}")).strip()
            try:
                requirement = Requirement(text)
            except InvalidRequirement as error:
                what = f"line {line.number} is not a requirement"
                raise ConfigurationError(what, where=name, hint=_HINT) from error
            yield _Use(line, is_bound, requirement, hashes, _pin(requirement, name))


def _pin(requirement: Requirement, where: str) -> Pin | None:
    if requirement.url:
        version = archive_of(requirement.url)[1]
        if _CONDA_BUILD.search(requirement.url):
            if not version:
                hint = "conda installed it from a folder that is gone: write the lock with `pip list --format=freeze`"
                raise ConfigurationError(f"{requirement.name} has no version", where=where, hint=hint)
            return Pin(name=requirement.name, version=version)
        return Pin(name=requirement.name, version=version, url=requirement.url)
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in _EXACT or specifiers[0].version.endswith(".*"):
        return None
    return Pin(name=requirement.name, version=specifiers[0].version)
