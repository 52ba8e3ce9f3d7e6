"""Store of installed packages by pin; folders are complete or absent.

Each package is installed once, alone, in a folder whose name has everything that decides its content. One process at a
time builds a folder under a different name, then renames it.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import IO

from plumbline.data.file_lock import lock, try_lock
from plumbline.environments.changes import Failure, PackageChange, pins_between
from plumbline.environments.installed import Base, Installed, read_distribution, this_base
from plumbline.environments.installer import Installer
from plumbline.environments.locks.model import Pin
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import DISK_FULL, ConfigurationError, DiskFullError, UnavailableError
from plumbline.schema.escape import first_of

_ROOT_NAME = "files"

_COPY_INSTEAD = frozenset({errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Another file system, too many links, links to files of others forbidden, no hard links at all."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the lock file next to `path`.

    The lock ends with its process, also if the process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("a+b") as file:
        lock(file)
        yield


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, building it first if missing.

    `build(PART)` fills a folder that is then renamed. A part left by a killed process is removed.
    """
    if folder.is_dir():
        return folder
    with locked(folder):
        if folder.is_dir():
            return folder
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            build(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return folder


def link_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Hard-link files from `source` into `target`, copying if impossible.

    A file that no longer exists is skipped.
    """
    made: set[str] = set()
    for name in names:  # some ten thousands: strings, for an object of each path takes as long as its link
        place = os.path.join(target, name)  # noqa: PTH118
        parent = os.path.dirname(place)  # noqa: PTH120
        if parent not in made:
            Path(parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        with suppress(FileNotFoundError):
            _link(os.path.join(source, name), place)  # noqa: PTH118


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=True)
    except FileExistsError:
        # Two packages may hold one file: the later one wins, as with an installer.
        Path(target).unlink()
        _link(source, target)
    except OSError as error:
        if error.errno not in _COPY_INSTEAD:
            raise
        shutil.copy2(source, target)


_LOCK_NAME = "plumbline-upgrade.lock"
"""A name of our own: `--work .` may hold whatever a user calls `lock`."""
_POLL_SECONDS = 0.5
_HINT = "wait for it, or choose a different folder with --work"


@contextmanager
def claimed(work: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock a work folder for exclusive use inside the context.

    Raise `ConfigurationError` if a different upgrade uses it, or if it cannot be a work folder. The lock is a `flock`:
    it ends with its process, however that ends.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / _LOCK_NAME).open("ab")
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        hint = "name a folder that can be written"
        raise ConfigurationError(
            f"cannot be the work folder: {error.strerror}", where=str(work), key="--work", hint=hint
        ) from error
    with file:
        _lock(file, work, time.monotonic() + wait_seconds)
        yield


def _lock(file: IO[bytes], work: Path, deadline: float) -> None:
    while not try_lock(file):
        if time.monotonic() >= deadline:
            raise ConfigurationError("a different upgrade uses this folder", where=str(work), hint=_HINT)
        time.sleep(_POLL_SECONDS)


class PackageStore:
    """Installed packages below `root`, by pin, interpreter and installer.

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
        """Return the folder of one pinned package.

        Only a complete package has this name.
        """
        # A digest, for arguments may hold passwords.
        key = digest_json([pin.to_json(), self._base.abi, list(self._installer.identity)])
        return self._root / f"{pin.name}-{pin.version or 'url'}-{key[:24]}"

    def add(self, pins: Iterable[Pin]) -> tuple[Failure, ...]:
        """Install the missing packages; return the failures.

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
        """Raise `ConfigurationError` for packages without hashes, which an index could change.

        A public index may serve a private package's name, and a build runs its code.
        """
        unknown = [f"{pin.name} {pin.shown}" for pin in pins if not pin.is_hashed]
        if unknown and not self._allows_unhashed:
            what = f"cannot be built from hashes: no lock here has a SHA-256 of {first_of(unknown, 3)}"
            hint = "write locks with hashes; or a person allows one upgrade with --allow-unhashed"
            raise ConfigurationError(what, where="packages", hint=hint)

    def releases(self, change: PackageChange) -> tuple[Pin, ...]:
        """Return the index's releases between both pins."""
        return pins_between(change, self._installer.versions(change.package))

    def _install(self, pins: Sequence[Pin]) -> list[Failure]:
        staging = self._root / f"staging.{os.getpid()}.part"
        shutil.rmtree(staging, ignore_errors=True)
        try:
            message = self._installer.install(pins, staging)
            alone = pins if message is not None else self._keep(pins, staging)
            if message is None or len(pins) > 1:
                return [failure for pin in alone for failure in self._install([pin])]
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return [Failure(stage="install", package=pins[0].name, message=message)]

    def _keep(self, pins: Sequence[Pin], staging: Path) -> list[Pin]:
        """Link each installed package into its own folder; return those that share a file, which one of them wrote."""
        sites = [path for path in staging.glob("**/*") if path.name in ("site-packages", "dist-packages")]
        installed = _distributions(sites)
        files = (file for package in installed.values() for file in {*package.files} if not file.endswith(".pyc"))
        owners = Counter(files)
        sharing = []
        for pin in pins:
            if pin.name not in installed:
                raise UnavailableError("the installer reported success and installed nothing", where=pin.requirement)
            package = installed[pin.name]
            if any(owners[file] > 1 for file in package.files):
                sharing.append(pin)
            else:
                build_once(self.folder(pin), partial(_link_package, package))
        return sharing

    def read(self, pin: Pin) -> Installed:
        """Return the installed package of a pin."""
        return _distributions([self.folder(pin) / _ROOT_NAME], self._base.markers)[pin.name]


def _link_package(package: Installed, part: Path) -> None:
    link_files(package.root, part / _ROOT_NAME, package.files)
    for place, source in package.data.items():
        link_files(source.parent, (part / _ROOT_NAME / place).parent, [source.name])


def _distributions(folders: Iterable[Path], markers: Mapping[str, str] | None = None) -> Mapping[str, Installed]:
    found = distributions(path=list(map(str, folders)))
    packages = (read_distribution(entry, markers) for entry in found if "Name" in entry.metadata)
    return {entry.name: entry for entry in packages}


@contextmanager
def _full_disk(where: Path) -> Iterator[None]:
    """Convert a disk-full error to `DiskFullError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        hint = "free some space, or name another folder with --work"
        raise DiskFullError(f"no room left: {error.strerror}", where=str(where), hint=hint) from error
