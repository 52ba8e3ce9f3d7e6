"""Read and parse a lock of any format.

From a path to its files, and from its files to the pins for this interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.pylock import is_valid_pylock_path
from pydantic import ValidationError

from plumbline.environments.locks.conda import conda_lock_entries, pixi_entries
from plumbline.environments.locks.model import OWN_NAME, REPOSITORY, Lock, LockEntry, LockFiles, Pin
from plumbline.environments.locks.poetry import poetry_entries
from plumbline.environments.locks.pylock import pylock_entries
from plumbline.environments.locks.requirements import included_files, requirement_pins, unused_lines
from plumbline.environments.locks.selection import Selection
from plumbline.environments.locks.uv import uv_entries
from plumbline.schema.base import first_problem
from plumbline.schema.delimited import decoded
from plumbline.schema.errors import ConfigurationError

_MAX_BYTES = 32 << 20
_HINT = (
    "name a lock file: requirements.txt or .lock, uv.lock, SCRIPT.py.lock, poetry.lock, pylock.toml, conda-lock.yml or "
    "pixi.lock"
)
_REQUIREMENTS = re.compile(r"(.*[._-])?requirements([._-].*)?\.lock")
"""Name of a requirements file that Rye, pip-compile or uv wrote as a lock."""

_EXPORTS = {
    "Pipfile.lock": "pipenv requirements --hash > requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "pyproject.toml": "uv lock",
}
"""Command that writes a lock from a file that is none, or of a format without a reader."""
_COMMIT = re.compile(r"@(?:[0-9a-f]{40}|[0-9a-f]{64})$")
_REVISION = re.compile(r"@[0-9]+$")
Reader = Callable[[dict[str, Any], Selection], Iterable[LockEntry]]


def load_lock(path: Path) -> LockFiles:
    """Read a lock file and all files that it includes.

    `ConfigurationError` names the file that cannot be read.
    """
    files = {path.name: _text(path)}
    queue = [path.name] if _format(path.name) == "requirements" else []
    while queue:
        name = queue.pop()
        for other in included_files(name, files[name]):
            if "://" in other:
                hint = "copy it beside the lock: what is judged must not change meanwhile"
                raise ConfigurationError(f"includes {other!r}, a URL", where=name, hint=hint)
            if other not in files:
                files[other] = _text(path.parent / other)
                queue.append(other)
    return LockFiles(name=path.name, files=files)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigurationError(f"more than {_MAX_BYTES >> 20} MiB", where=str(path), hint=_HINT)
        return decoded(path.read_bytes()).replace("\r\n", "\n")  # a checkout of git may have either
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", where=str(path), hint=_HINT) from error
    except UnicodeError as error:
        raise ConfigurationError("is not UTF-8 text", where=str(path), hint=_HINT) from error


def parse_lock(
    files: LockFiles, *, extras: Sequence[str] | None = None, markers: Mapping[str, str] | None = None
) -> Lock:
    """Parse a lock to pins for this interpreter, or for given markers.

    Raise `ConfigurationError` if it pins nothing here.
    """
    selection = Selection(files.name, None if extras is None else tuple(extras), markers or {})
    format_name = _format(files.name)
    elsewhere: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    try:
        if format_name == "requirements":
            pins = requirement_pins(files, selection)
            notes = _notes(files, selection)
        else:
            pins, elsewhere = selection.pins(_READERS[format_name](_content(files, format_name), selection))
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where=files.name, key=key, hint=_HINT) from error
    except (AttributeError, KeyError, TypeError) as error:
        # The file is of the right syntax and another shape than its format has.
        raise ConfigurationError(f"is not a {format_name} file: {error}", where=files.name, hint=_HINT) from error
    if pins.pop(OWN_NAME, None):
        notes += (f"{files.name}: {OWN_NAME}: not judged; both environments train with this command's own release",)
    if not pins:
        raise ConfigurationError("pins nothing for this interpreter", where=files.name, hint=_HINT)
    for pin in pins.values():
        _check_commit(pin, files.name)
    return Lock(where=files.name, sha256=files.digest, pins=pins, elsewhere=elsewhere, notes=notes)


def _notes(files: LockFiles, selection: Selection) -> tuple[str, ...]:
    """Return notes on a requirements file's options and local folders, and on extras."""
    names, own = unused_lines(files, "option"), unused_lines(files, "folder")
    hint = "pass those that the packages need with --pip"
    lines = [f"{', '.join(names)}: not used; this machine's settings apply (hint: {hint})"] if names else []
    lines += [f"{', '.join(own)}: not judged; a folder is the team's own code, left as installed"] if own else []
    chosen = ", ".join(selection.extras or ())
    lines += [f"--extra {chosen}: not used; a requirements file has no extras"] if chosen else []
    return tuple(f"{files.name}: {line}" for line in lines)


def _check_commit(pin: Pin, where: str) -> None:
    """Raise `ConfigurationError` for a branch or tag instead of a commit."""
    address = pin.url.partition("#")[0]
    kind = REPOSITORY.match(address)
    if kind is None or (_COMMIT if kind[1] in ("git", "hg") else _REVISION).search(address):
        return
    reference = address.partition("://")[2].partition("/")[2].partition("@")[2]
    what = f"{reference[:60]!r} is a moving reference" if reference else "names no commit"
    hint = "write the whole commit behind the @, as `git ls-remote` prints it"
    raise ConfigurationError(what, where=where, key=pin.name, hint=hint)


def read_lock(path: Path, *, extras: Sequence[str] | None = None, markers: Mapping[str, str] | None = None) -> Lock:
    """Read and parse the lock at `path`."""
    return parse_lock(load_lock(path), extras=extras, markers=markers)


def _format(name: str) -> str:
    file = Path(name).name
    if file in ("uv.lock", "poetry.lock", "pixi.lock"):
        return file
    if is_valid_pylock_path(Path(file)):
        return "pylock.toml"
    if file.endswith((".yml", ".yaml")):
        return "conda-lock.yml"
    if file.endswith(".py.lock"):  # of `uv lock --script`
        return "uv.lock"
    if file.endswith((".lock", ".toml", ".json")) and not _REQUIREMENTS.fullmatch(file):
        raise ConfigurationError("unknown lock format", where=name, hint=_EXPORTS.get(file, _HINT))
    return "requirements"


def _content(files: LockFiles, format_name: str) -> dict[str, Any]:
    import tomllib  # of Python 3.11: an environment of the upgrade gate, which may be of 3.10, reads no lock
    import yaml

    text = files.files[files.name]
    try:
        content = yaml.safe_load(text) if format_name in ("conda-lock.yml", "pixi.lock") else tomllib.loads(text)
    except RecursionError as error:
        raise ConfigurationError("nested too deep", where=files.name, hint=_HINT) from error
    except (ValueError, yaml.YAMLError) as error:
        # The rest of a parser's message quotes the file, which may be a stranger's.
        line = re.search(r"\bline \d+", str(error))
        what = f"cannot be parsed: {line[0]}" if line else "cannot be parsed"
        raise ConfigurationError(what, where=files.name, hint=_HINT) from error
    if not isinstance(content, dict):
        raise ConfigurationError("holds no table", where=files.name, hint=_HINT)
    return content


_READERS: dict[str, Reader] = {
    "uv.lock": uv_entries,
    "poetry.lock": poetry_entries,
    "pylock.toml": pylock_entries,
    "conda-lock.yml": conda_lock_entries,
    "pixi.lock": pixi_entries,
}
