"""Store of changed packages.

Each is installed once, alone, in a folder whose name has everything that decides its content.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from plumbline.digest import digest_json
from plumbline.errors import DISK_FULL, ConfigurationError, DiskFullError, UnavailableError
from plumbline.upgrade.base import Base, this_base
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.folders import build_once, link_files, locked
from plumbline.upgrade.installed import Installed, read_distribution
from plumbline.upgrade.installer import Installer
from plumbline.upgrade.locks.model import Pin
from plumbline.upgrade.releases import has_releases, pins_between
from plumbline.upgrade.trials import Failure

_ROOT_NAME = "files"


class PackageStore:
    """Packages below `root`, by pin, interpreter and installer.

    The pin includes source and hashes; the installer includes its arguments.
    """

    def __init__(
        self, root: Path, installer: Installer, *, allows_unhashed: bool = False, base: Base | None = None
    ) -> None:
        self._root = root
        self._installer = installer
        self._allows_unhashed = allows_unhashed
        self._base = base or this_base()

    def folder(self, pin: Pin) -> Path:
        """Return the folder of a pin's package.

        Only a complete package has this name.
        """
        # A digest, for arguments may hold passwords.
        key = digest_json([pin.to_json(), self._base.abi, list(self._installer.identity)])
        return self._root / f"{pin.name}-{pin.version or 'url'}-{key[:24]}"

    def add(self, pins: Iterable[Pin]) -> tuple[Failure, ...]:
        """Install missing packages; return a failure for each failed one.

        Raise `UnavailableError` if the index does not answer: then nothing is known of the packages. Raise
        `ConfigurationError` for a missing package without a hash, unless the store allows it.
        """
        missing = [pin for pin in pins if not self.folder(pin).is_dir()]
        if not missing:
            return ()
        self._check_hashes(missing)
        with locked(self._root / "install"), _full_disk(self._root):
            missing = [pin for pin in missing if not self.folder(pin).is_dir()]
            # With hashes for one requirement, installers ask for the hashes of all.
            groups = [[pin for pin in missing if pin.is_hashed == hashed] for hashed in (False, True)]
            failures = tuple(failure for group in groups if group for failure in self._install(group))
        if failures and len(failures) == len(missing):
            # Nothing could be installed: that may be the index, and no package's fault.
            self._installer.check_index(missing[0])
        return failures

    def _check_hashes(self, pins: Sequence[Pin]) -> None:
        """Raise `ConfigurationError` for packages that an index alone would decide.

        A public index may serve a private package's name, and a build runs its code.
        """
        unknown = [f"{pin.name} {pin.shown}" for pin in pins if not pin.is_hashed]
        if unknown and not self._allows_unhashed:
            names = ", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else "")
            what = f"cannot be built from hashes: no lock here has a SHA-256 of {names}"
            hint = "write locks with hashes; or a person allows one upgrade with --allow-unhashed"
            raise ConfigurationError(what, where="packages", hint=hint)

    def releases(self, change: PackageChange) -> tuple[Pin, ...]:
        """Return the releases in the index between both pins."""
        return pins_between(change, self._installer.versions(change.package)) if has_releases(change) else ()

    def _install(self, pins: Sequence[Pin]) -> list[Failure]:
        staging = self._root / f"staging.{os.getpid()}.part"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            message = self._installer.install(pins, staging)
            if message is None:
                self._keep(pins, staging)
                return []
            if len(pins) > 1:
                return [failure for pin in pins for failure in self._install([pin])]
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return [Failure(stage="install", package=pins[0].name, message=message)]

    def _keep(self, pins: Sequence[Pin], staging: Path) -> None:
        """Link each installed package into its own folder."""
        installed = _distributions(staging)
        for pin in pins:
            if pin.name not in installed:
                raise UnavailableError("the installer reported success and installed nothing", where=pin.requirement)
            build_once(self.folder(pin), partial(_link_package, staging, installed[pin.name].files))

    def read(self, pin: Pin) -> Installed:
        """Return the package of a pin that was added."""
        return _distributions(self.folder(pin) / _ROOT_NAME, self._base.markers)[pin.name]


def _link_package(staging: Path, files: Sequence[str], part: Path) -> None:
    link_files(staging, part / _ROOT_NAME, files)


def _distributions(folder: Path, markers: Mapping[str, str] | None = None) -> Mapping[str, Installed]:
    packages = (
        read_distribution(entry, markers) for entry in distributions(path=[str(folder)]) if "Name" in entry.metadata
    )
    return {entry.name: entry for entry in packages}


class _full_disk:  # noqa: N801 - used as a function
    """Converter of a full disk's error to `DiskFullError`."""

    def __init__(self, where: Path) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            hint = "free some space, or name another folder with --work"
            raise DiskFullError(f"no room left: {error.strerror}", where=str(self._where), hint=hint) from error
