"""Interpreter with the packages that an upgrade changes, and their locks."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from importlib.util import cache_from_source
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from plumbline.environments.interpreter import check_libraries, find_python, lock_of
from plumbline.environments.locks import LockFiles, load_lock, parse_lock
from plumbline.environments.locks.model import OWN_NAME, Pin
from plumbline.schema.base import read_model
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.variables import variable

_LOCKS_FOLDER = "locks"
_MOST_LOCKS = 30
"""Number of locks to keep: about a month of nightly upgrades."""


_SECONDS = 60.0
_ASK = """
import json, platform, sys, sysconfig
abi = sysconfig.get_config_var("SOABI") or "unknown"
print(json.dumps({"version": platform.python_version(), "abi": abi, "paths": sys.path}))
"""


@dataclass(frozen=True, slots=True)
class Base:
    """Python interpreter of the environment to be upgraded."""

    python: Path
    version: str
    abi: str
    """It tells the machine, the version and the build of Python."""
    paths: tuple[str, ...]
    """Folders from which it imports."""
    variables: dict[str, str] = field(default_factory=dict)
    """Of every process in its environments."""
    lock: Path | None = None
    """The lock that it was installed from, if known."""

    @property
    def minor(self) -> str:
        """Return the interpreter's version as `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def markers(self) -> dict[str, str]:
        """Return the PEP 508 marker values of this interpreter."""
        return {
            "python_version": self.minor, "python_full_version": self.version, "implementation_version": self.version,
        }  # fmt: skip


def this_base() -> Base:
    """Return the current process's interpreter."""
    abi = str(sysconfig.get_config_var("SOABI") or "unknown")
    lock = variable("PLUMBLINE_LOCK")
    return Base(
        Path(sys.executable), platform.python_version(), abi, tuple(sys.path), lock=Path(lock) if lock else None
    )


def base_of(given: str) -> Base:
    """Return the interpreter of a team's environment; "" means this process's.

    Raise `ConfigurationError` for one that cannot train.
    """
    if given:
        return team_base(given)
    check_libraries()
    return this_base()


def team_base(given: str) -> Base:
    """Return a team environment's interpreter, from its path or folder.

    Raise `ConfigurationError` for an environment that cannot train.
    """
    # Imported for a team's environment only: an environment of the gate, which imports this module, needs no selfcheck.
    from plumbline.environments.selfcheck import check_trainer

    _, _, problem = check_trainer(given)
    if problem:
        raise ConfigurationError(problem)
    python = find_python(given)
    # Isolated: neither this process's variables nor the working directory add a package.
    done = subprocess.run([str(python), "-I", "-c", _ASK], capture_output=True, text=True, timeout=_SECONDS, check=True)
    found = json.loads(done.stdout)
    return Base(
        python, found["version"], found["abi"], tuple(found["paths"]), {"PYTHONPATH": "", "PYTHONHOME": ""},
        lock_of(python),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Installed:
    """One installed distribution."""

    name: str
    version: str
    root: Path
    """The folder on `sys.path` that holds it."""
    files: tuple[str, ...]
    """Paths below `root`."""
    data: Mapping[str, Path]
    """Files below the environment's prefix, by their path there: programs, libraries, settings such as `etc/x.json`."""
    mark: str
    """Changes when the distribution is installed anew."""
    requirements: tuple[Requirement, ...]
    links: Mapping[str, str]

    @property
    def pin(self) -> Pin:
        """Return the pin that a lock would contain for this distribution."""
        return Pin(name=self.name, version=self.version)


def installed_packages(
    paths: Iterable[str] | None = None, markers: Mapping[str, str] | None = None
) -> dict[str, Installed]:
    """Return the installed distributions by name, with requirements for these markers.

    Of two with the same name, return the first on the path: it is the one that is imported.
    """
    packages: dict[str, Installed] = {}
    for distribution in distributions(path=list(sys.path if paths is None else paths)):
        # An install that broke off leaves metadata without a name, and asking for it all the same is deprecated.
        if "Name" in distribution.metadata:
            package = read_distribution(distribution, markers)
            if package.name != OWN_NAME:
                packages.setdefault(package.name, package)
    return packages


def read_distribution(distribution: Distribution, markers: Mapping[str, str] | None = None) -> Installed:
    """Read one distribution from its metadata."""
    root = Path(str(distribution.locate_file("")))
    names = _file_names(distribution, markers or {})
    metadata = distribution.metadata
    homepage = metadata.get_all("Home-page") or [""]
    return Installed(
        name=canonicalize_name(metadata["Name"]),
        version=distribution.version,
        root=root,
        files=tuple(name for name in names if not name.startswith(("..", "/"))),
        data=_data(root, names),
        mark=_mark(root, names),
        requirements=tuple(_requirements(distribution.requires or (), markers or {})),
        links=_links(metadata.get_all("Project-URL") or (), homepage[0]),
    )


def _file_names(distribution: Distribution, markers: Mapping[str, str]) -> list[str]:
    """Return a distribution's file names, with bytecode for the interpreter of `markers`.

    RECORD is read as text: creating an object for each path takes seconds.
    """
    record = distribution.read_text("RECORD")
    if record is None:
        return [str(file) for file in distribution.files or ()]
    names = [row[0] for row in csv.reader(record.splitlines()) if row]
    if any(name.endswith(".pyc") for name in names):
        return names
    # uv does not list the bytecode. Without it, every process in an environment would compile all that it imports.
    root = Path(str(distribution.locate_file("")))
    own = str(sys.implementation.cache_tag)
    minor = markers.get("python_version", "").replace(".", "")
    tag = f"{sys.implementation.name}-{minor}" if minor else own
    compiled = (cache_from_source(name).replace(f".{own}.", f".{tag}.") for name in names if name.endswith(".py"))
    return [*names, *(name for name in compiled if (root / name).is_file())]


def _data(root: Path, names: Iterable[str]) -> Mapping[str, Path]:
    """Return the files that belong below the prefix. The store has them in the package's own folder."""
    data = {}
    for name in names:
        if name.startswith("../"):
            place = os.path.normpath(f"lib/python3/site-packages/{name}")
            above = Path(os.path.normpath(root / name))
            data[place] = above if above.exists() else root / place
    return data


def owns_content(package: Installed, name: str) -> bool:
    """Return whether a file below the root has the content that the package's RECORD states."""
    record = next(each for each in package.files if each.endswith(".dist-info/RECORD"))
    rows = csv.reader((package.root / record).read_text(encoding="utf-8").splitlines())
    stated = next((row[1] for row in rows if len(row) > 1 and row[0] == name), "")
    digest = hashlib.sha256((package.root / name).read_bytes()).digest()
    return stated.rstrip("=") == "sha256=" + urlsafe_b64encode(digest).decode().rstrip("=")


def _mark(root: Path, names: Iterable[str]) -> str:
    record = next((name for name in names if name.endswith(".dist-info/RECORD")), None)
    if record is None:
        return ""
    try:
        about = (root / record).stat()
    except OSError:
        return ""
    return f"{about.st_size}-{about.st_mtime_ns}"


def _requirements(lines: Iterable[str], markers: Mapping[str, str]) -> Iterable[Requirement]:
    """Yield the requirements that apply under these markers."""
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue  # of an old release; pip ignores it too
        # Extras are left out: which of them were asked for is not recorded in an environment.
        if requirement.marker is None or requirement.marker.evaluate({**markers, "extra": ""}):
            yield requirement


def _links(urls: Iterable[str], homepage: str | None) -> dict[str, str]:
    links = {"Homepage": homepage} if homepage and homepage.startswith("http") else {}
    for line in urls:
        label, _, url = line.partition(",")
        if url.strip().startswith(("https://", "http://")):
            links[label.strip()[:80]] = url.strip()[:500]
    return links


def keep_lock(root: Path, path: Path) -> None:
    """Store a lock and its included files below `root`, for later A/Bs.

    A record names the baseline's packages and versions. Their hashes are in the lock of that night only.

    Raise `ConfigurationError` for a file that cannot be read.
    """
    lock = load_lock(path)
    kept = root / _LOCKS_FOLDER / f"{lock.digest}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(f".{os.getpid()}.part")
    part.write_text(lock.model_dump_json(), encoding="utf-8")
    part.replace(kept)  # also where it exists: the newest ones stay
    for old in _newest_first(root)[_MOST_LOCKS:]:
        old.unlink(missing_ok=True)


def hashed_pins(root: Path) -> dict[tuple[str, str], Pin]:
    """Return hashed pins of all stored locks by (name, version).

    A lock that can no longer be read is skipped.
    """
    pins: dict[tuple[str, str], Pin] = {}
    for path in reversed(_newest_first(root)):
        with suppress(PlumblineError):
            lock = parse_lock(read_model(LockFiles, path))
            pins |= {(pin.name, pin.identity[0]): pin for pin in lock.pins.values() if pin.is_hashed}
    return pins


def _newest_first(root: Path) -> list[Path]:
    return sorted((root / _LOCKS_FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
