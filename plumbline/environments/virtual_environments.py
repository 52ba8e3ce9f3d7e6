"""Virtual environments that differ only in the upgraded packages.

The current environment's packages are hard-linked from where they are installed, changed ones from the store. So a
package that is removed is absent, a namespace package has one version of each part, and a new CUDA library is found by
the torch that needs it, at the price of some thousand links, which take seconds and no room.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import plumbline
from plumbline.environments.changes import PackageChange
from plumbline.environments.installed import Base, Installed, installed_packages, owns_content, this_base
from plumbline.environments.locks.model import Lock
from plumbline.environments.opened import START
from plumbline.environments.package_store import PackageStore, build_once, link_files
from plumbline.environments.python_modules import module_command
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.variables import variable

_SECONDS = 600.0
_CODE = Path(plumbline.__file__).parent


_HEAD_BYTES = 1024
_PYTHON = re.compile(rb"/[^\s'\"]*/python[0-9.]*(?=[\s'\"])")
"""Interpreter in the first lines of a program, also behind a shell's `exec`."""
VARIABLES = {"PYTHONSAFEPATH": "1"}
"""Of every process in an environment: a folder of the working directory must not be imported in a package's place."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Virtual environment on disk."""

    folder: Path
    sha256: str
    variables: Mapping[str, str] = field(default_factory=lambda: dict(VARIABLES))
    """Of every process in it."""

    @property
    def python(self) -> Path:
        """Return the path of the environment's Python interpreter."""
        return self.folder / "bin" / "python"


class Environments:
    """Builder of virtual environments below `root`.

    An environment's folder is named by the digest of its content.
    """

    def __init__(
        self, root: Path, store: PackageStore, current: Mapping[str, Installed] | None = None,
        base: Base | None = None,
    ) -> None:  # fmt: skip
        self._root = root
        self._store = store
        self.base = base or this_base()
        installed = installed_packages(self.base.paths, self.base.markers) if current is None else current
        self.current = dict(installed)

    def packages(self, changes: Sequence[PackageChange]) -> dict[str, Installed]:
        """Return all packages of an environment with these changes.

        The changed packages have to be in the store.
        """
        packages = dict(self.current)
        for change in changes:
            if change.candidate is None:
                packages.pop(change.package, None)
            else:
                packages[change.package] = self._store.read(change.candidate)
        return packages

    def build(self, changes: Sequence[PackageChange]) -> Environment:
        """Return the environment with these changes, building it if missing."""
        packages = self.packages(changes)
        sha256 = digest_json([
            self.base.abi, self.base.minor, str(_CODE), plumbline.__version__,
            _code_mark(),
            [[name, package.version, str(package.root), package.mark] for name, package in sorted(packages.items())],
        ])  # fmt: skip
        self._check_shared(changes)
        changed = {change.package for change in changes}
        # As an installer does: the changed packages last, so that a file of two packages is theirs.
        order = sorted(packages.values(), key=lambda package: (package.name in changed, package.name))
        folder = build_once(self._root / sha256[:24], lambda part: _fill(part, order, self.base))
        return Environment(folder, sha256, VARIABLES | self.base.variables)

    def _check_shared(self, changes: Sequence[PackageChange]) -> None:
        """Raise `ConfigurationError` for a file that a removed package took over from one that stays."""
        removed = [
            self.current[each.package] for each in changes if not each.candidate and each.package in self.current
        ]
        owned = {file: package for package in removed for file in package.files if not file.endswith(".pyc")}
        for name, package in self.current.items():
            if name in {change.package for change in changes} or owned.keys().isdisjoint(package.files):
                continue
            for file in owned.keys() & set(package.files):
                other = owned[file]
                if package.root == other.root and (package.root / file).is_file() and not owns_content(package, file):
                    what = f"{name} and {other.name} own {file}, and the installed content is not {name}'s"
                    hint = "install the candidate in an environment of its own, and name it with --python"
                    raise ConfigurationError(what, where=str(package.root), key=other.name, hint=hint)

    def remove(self, environment: Environment) -> None:
        """Delete an environment that is no longer needed.

        The store keeps its packages.
        """
        shutil.rmtree(environment.folder, ignore_errors=True)

    def prune(self, keep: int = 4) -> None:
        """Delete all environments except the newest ones.

        The store keeps their packages.
        """
        folders = [path for path in self._root.glob("*") if path.is_dir() and path.suffix == ""]
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)[keep:]:
            shutil.rmtree(folder, ignore_errors=True)


def _code_mark() -> str:
    """Return a digest that changes with Plumbline's own code.

    Every environment holds a copy of this code.
    """
    marks = sorted(
        f"{path.relative_to(_CODE)} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in _CODE.rglob("*.py")
    )
    return digest_json(marks)


def _fill(part: Path, packages: Sequence[Installed], base: Base) -> None:
    create = [*module_command(base.python, "venv"), "--without-pip", "--symlinks", str(part)]
    try:
        done = subprocess.run(create, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"creates no environment within {_SECONDS:g} s", where=str(base.python)) from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1][:200]
        hint = "install Python's module venv for this interpreter"
        raise ConfigurationError(f"creates no environment: {why}", where=str(base.python), key="python", hint=hint)
    site = next((part / "lib").glob("python*")) / "site-packages"
    for package in packages:
        link_files(package.root, site, package.files)
        for place, source in package.data.items():
            _link_data(source, part / place, part.with_suffix(""))
    shutil.copytree(_CODE, site / "plumbline", dirs_exist_ok=True)
    name, text = START
    (site / name).write_text(text, encoding="utf-8")


def _link_data(source: Path, target: Path, folder: Path) -> None:
    """Link a file below the prefix. A program of Python gets the interpreter of the environment's last `folder`."""
    if not source.is_file() or (target.parent.name == "bin" and target.name.startswith(("python", "activate"))):
        return
    with source.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(b"#!") or not _PYTHON.search(head):
        link_files(source.parent, target.parent, [source.name])
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(_PYTHON.sub(os.fsencode(folder / "bin" / "python"), source.read_bytes(), count=1))
    target.chmod(0o755)


def check_current(lock: Lock, changes: Sequence[PackageChange], current: Mapping[str, Installed]) -> None:
    """Raise `ConfigurationError` unless this interpreter has the current lock's versions.

    Only changed packages are checked. A package on PYTHONPATH is an error as well.
    """
    for change in changes:
        installed = current.get(change.package)
        if change.current is not None and not _is_same(change, installed):
            raise ConfigurationError(
                f"pins {change.package} {change.current.shown}, this environment holds "
                f"{installed.version if installed else 'none'}",
                where=lock.where,
                hint="install the current lock first; the upgrade is compared with it",
            )
        if installed is not None and is_on_python_path(installed):
            raise ConfigurationError(
                f"{change.package} lies on PYTHONPATH, which every environment imports first",
                where=str(installed.root), key="PYTHONPATH", hint="install it instead",
            )  # fmt: skip


def is_on_python_path(package: Installed) -> bool:
    """Return whether the package is imported from PYTHONPATH.

    Every environment imports from there first.
    """
    entries = [entry for entry in variable("PYTHONPATH").split(os.pathsep) if entry]
    return package.root.resolve() in [Path(entry).resolve() for entry in entries]


def _is_same(change: PackageChange, installed: Installed | None) -> bool:
    """Return whether the installed version equals the pinned one.

    Most locks do not pin a build's local label, such as `+cpu`.
    """
    if installed is None or change.current is None:
        return False
    pinned, held = change.current.identity[0], installed.pin.identity[0]
    return pinned in ("", held, held.partition("+")[0]) or pinned.partition("+")[0] == held
