"""Overlays: one package of the candidate lock, laid over the current environment without touching it.

Each changed package is installed once, alone, into a folder of its own; a training with some of the changes is the
current interpreter with those folders first on `PYTHONPATH`. So a trial of the bisection costs one short training and
no environment, and what the user's environment holds stays as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from plumbline.digest import digest_json
from plumbline.errors import ConfigurationError, UnavailableError
from plumbline.upgrade.locks import PackageChange, normalized

__all__ = ["Overlays", "check_environment"]

_INSTALL_SECONDS = 1800


class Overlays:
    """The folders of the changed packages, below `root`; kept, so that a second gate installs nothing."""

    def __init__(self, root: Path, *, pip_arguments: Sequence[str] = ()) -> None:
        self._root = root
        self._pip_arguments = tuple(pip_arguments)

    def add(self, change: PackageChange) -> Path:
        """Install the candidate's version of one package; the folder that holds it."""
        if change.candidate is None:
            raise ConfigurationError(
                "is dropped by the candidate, which an overlay cannot show", where=change.package,
                hint="bisect what is changed or added; a package that goes needs an environment of its own",
            )  # fmt: skip
        folder = self._root / f"{change.package}-{change.candidate}-{self._made_for()}"
        if folder.is_dir():
            return folder
        partial = folder.with_name(folder.name + ".part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.parent.mkdir(parents=True, exist_ok=True)
        self._install(f"{change.package}=={change.candidate}", partial)
        partial.rename(folder)
        return folder

    def _made_for(self) -> str:
        """The interpreter's ABI and what pip was told: an overlay of another build must not pass for this one."""
        # SOABI says more than the cache tag: the machine, and whether the build is free-threaded or for debugging.
        abi = sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag
        # A digest, for the arguments may hold an index's password.
        return f"{abi}-{digest_json(self._pip_arguments)[:16]}"

    def _install(self, requirement: str, target: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += [*self._pip_arguments, "--target", str(target), requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS)
        except subprocess.TimeoutExpired as error:
            shutil.rmtree(target, ignore_errors=True)
            raise UnavailableError(f"not installed within {_INSTALL_SECONDS} s", where=requirement) from error
        if done.returncode:
            shutil.rmtree(target, ignore_errors=True)
            last = (done.stderr.strip().splitlines() or ["pip says nothing"])[-1]
            raise UnavailableError(f"cannot be installed: {last[:300]}", where=requirement)

    def environment(self, changes: Sequence[PackageChange]) -> dict[str, str]:
        """The variables of a training with these changes, and only these, applied."""
        folders = [str(self.add(change)) for change in changes]
        inherited = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([*folders, *([inherited] if inherited else [])])
        return {"PYTHONPATH": path} if path else {}


def _installed() -> dict[str, str]:
    """Package to version; of two by one name the first on `sys.path`, for that is the one that is imported."""
    found: dict[str, str] = {}
    for distribution in distributions():
        # An install that broke off leaves metadata without a name; to ask for it all the same is deprecated.
        if "Name" in distribution.metadata:
            found.setdefault(normalized(distribution.metadata["Name"]), distribution.version)
    return found


def check_environment(lock: Mapping[str, str], changes: Sequence[PackageChange], *, where: str) -> None:
    """`ConfigurationError` unless this interpreter holds the current lock's version of every package that changes."""
    installed = _installed()
    for change in changes:
        expected, found = lock.get(change.package), installed.get(change.package)
        if expected is not None and (found or "").split("+")[0] != expected.split("+")[0]:
            raise ConfigurationError(
                f"pins {change.package} {expected}, this environment holds {found or 'none'}",
                where=where,
                hint="install the current lock first; the upgrade is held against it",
            )
