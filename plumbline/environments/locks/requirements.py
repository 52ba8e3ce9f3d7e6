"""Reader of requirements.txt, following pip's rules.

It knows `-r`, `-c`, hashes, markers and direct URLs. pip offers no parser to others, and the one package that parses
the whole format has had no release since 2022. The file format is small and documented
(https://pip.pypa.io/en/stable/reference/requirements-file-format/), so lines and options are split here, and every
requirement, marker, version and URL is read by `packaging`. The installer that builds an environment reads the pins
again: a line that was split wrongly is refused there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from plumbline.environments.locks.model import LockFiles, Pin
from plumbline.schema.errors import ConfigurationError

_COMMENT = re.compile(r"(^|\s)#.*$")
_INCLUDE = re.compile(r"^(?:(?P<short>-[rc])\s*|(?P<long>--requirement|--constraint)(?:\s+|=))(?P<path>\S.*)$")
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


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each logical line.

    Continuation lines are joined; comments and blank lines are removed.
    """
    pending, start = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        start = start if pending else number
        if raw.rstrip().endswith("\\") and not raw.lstrip().startswith("#"):
            pending += raw.rstrip()[:-1] + " "
            continue
        line, pending = _COMMENT.sub("", pending + raw).strip(), ""
        if line:
            yield start, line
    if pending.strip():
        yield start, _COMMENT.sub("", pending).strip()


def _included(line: str) -> tuple[str, str] | None:
    """Return kind and path of an include line (`-r` or `-c`).

    The kind is `-r` or `-c`; `None` for any other line.
    """
    match = _INCLUDE.match(line)
    if match is None:
        return None
    kind = match["short"] or {"--requirement": "-r", "--constraint": "-c"}[match["long"]]
    return kind, match["path"].strip().strip("'\"")


def _beside(name: str, path: str) -> str:
    """Return an included path, relative to the first file's folder."""
    parts: list[str] = []
    for part in (PurePosixPath(name).parent / path).parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return str(PurePosixPath(*parts))


def included_files(name: str, text: str) -> tuple[str, ...]:
    """Return the paths of the files that this file includes."""
    includes = (_included(line) for _, line in _lines(text))
    return tuple(_beside(name, entry[1]) for entry in includes if entry is not None)


def requirement_pins(files: LockFiles, markers: Mapping[str, str]) -> dict[str, Pin]:
    """Return the pins for an interpreter with these markers.

    `ConfigurationError` names the line that does not pin a version.
    """
    pins: dict[str, Pin] = {}
    bounds: dict[str, Pin] = {}
    unpinned: dict[str, tuple[str, int]] = {}

    def add(name: str, number: int, line: str, *, is_constraint: bool) -> None:
        requirement, hashes = _requirement(name, number, line)
        if requirement.marker is not None and not requirement.marker.evaluate({**markers}):
            return
        package = canonicalize_name(requirement.name)
        pin = _pin(requirement, hashes, name)
        if pin is None:
            if not is_constraint:
                unpinned[package] = name, number
            return
        target = bounds if is_constraint else pins
        known = target.get(package)
        if known is not None and known.identity != pin.identity:
            what = f"line {number} pins {package} {pin.shown}, and {known.shown} is pinned before"
            raise ConfigurationError(what, where=name, hint="keep one of them")
        target[package] = pin

    _walk(files, files.name, add, is_constraint=False, seen=())
    for package, (name, number) in unpinned.items():
        if package not in bounds:
            raise ConfigurationError(f"line {number} pins no version", where=name, hint=_HINT)
        pins.setdefault(package, bounds[package])
    return pins


def _walk(files: LockFiles, name: str, add: Callable[..., None], *, is_constraint: bool, seen: tuple[str, ...]) -> None:
    if name in seen:
        raise ConfigurationError("includes itself", where=name, hint="remove the -r or -c line that leads back")
    if name not in files.files:
        raise ConfigurationError(f"includes {name!r}, which was not handed over", where=files.name)
    for number, line in _lines(files.files[name]):
        if line == "@EXPLICIT":
            hint = "conda serves all of them: write those of an index with `pip list --format=freeze`"
            raise ConfigurationError("lists URLs of conda's packages", where=name, hint=hint)
        entry = _included(line)
        if entry is not None:
            kind, path = entry
            constraint = is_constraint or kind == "-c"
            _walk(files, _beside(name, path), add, is_constraint=constraint, seen=(*seen, name))
            continue
        text = _without_folders(name, number, line)
        if text and not text.startswith("-"):
            add(name, number, text, is_constraint=is_constraint)


def _without_folders(name: str, number: int, line: str) -> str:
    """Return a line's requirement, or "" for a local folder."""
    if _is_folder(line):
        return ""
    editable = _EDITABLE.match(line)
    if editable is None:
        # uv exports an archive by its address alone; pip takes the name from the file's.
        package = _in_url(line.split(maxsplit=1)[0])[0] if _ADDRESS.match(line) else ""
        return f"{package} @ {line}" if package else line
    target = editable["target"].strip()
    # As `pip freeze` writes an editable install of a repository.
    egg = _EGG.search(target)
    if egg is None:
        hint = "add #egg=NAME behind the URL, as pip freeze does"
        raise ConfigurationError(f"line {number} names no package", where=name, hint=hint)
    return f"{egg['name']} @ {target}"


def _is_folder(line: str) -> bool:
    editable = _EDITABLE.match(line)
    if editable is not None:
        return "+" not in editable["target"].partition("://")[0]
    target = (_FOLDER.match(line) or {"target": ""})["target"]
    return bool(target) and not version_in_url(target) and not _CONDA_BUILD.search(target)


def folders(files: LockFiles) -> tuple[str, ...]:
    """Return the local folders that the files install from."""
    lines = (line for text in files.files.values() for _, line in _lines(text) if _is_folder(line))
    return tuple(dict.fromkeys(_EDITABLE.sub(r"\g<target>", line) for line in lines))


def option_names(files: LockFiles) -> tuple[str, ...]:
    """Return the files' option names, such as `--index-url`, without values.

    The machine decides where the installer looks, not a lock that comes from elsewhere.
    """
    lines = (line for text in files.files.values() for _, line in _lines(text) if line.startswith("-"))
    names = (
        re.split(r"[\s=]", line, maxsplit=1)[0] for line in lines if not _included(line) and not _EDITABLE.match(line)
    )
    return tuple(dict.fromkeys(names))


def _requirement(name: str, number: int, line: str) -> tuple[Requirement, tuple[str, ...]]:
    hashes = tuple(match["value"].lower() for match in _HASH.finditer(f" {line}"))
    text = _OPTION.sub("", _HASH.sub("", f" {line}")).strip()
    try:
        return Requirement(text), hashes
    except InvalidRequirement as error:
        raise ConfigurationError(f"line {number} is not a requirement", where=name, hint=_HINT) from error


def _pin(requirement: Requirement, hashes: tuple[str, ...], where: str) -> Pin | None:
    if requirement.url:
        version = version_in_url(requirement.url)
        if _CONDA_BUILD.search(requirement.url):
            if not version:
                hint = "conda installed it from a folder that is gone: write the lock with `pip list --format=freeze`"
                raise ConfigurationError(f"{requirement.name} has no version", where=where, hint=hint)
            return Pin(name=requirement.name, version=version)
        return Pin(name=requirement.name, version=version, url=requirement.url, hashes=hashes)
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator not in _EXACT or specifiers[0].version.endswith(".*"):
        return None
    return Pin(name=requirement.name, version=specifiers[0].version, hashes=hashes)


def version_in_url(url: str) -> str:
    """Return the version in an archive's file name, or ""."""
    return _in_url(url)[1]


def _in_url(url: str) -> tuple[str, str]:
    """Return name and version from an archive's file name, or ""."""
    file = url.partition("#")[0].partition("?")[0].rpartition("/")[2].replace("%2B", "+")
    try:
        found = parse_wheel_filename(file)[:2] if file.endswith(".whl") else parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return "", ""
    return found[0], str(found[1])
