"""Interpreter whose packages an upgrade changes: this process's own, or that of a team's environment."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.errors import ConfigurationError
from plumbline.interpreter import check_libraries, find_python, lock_of
from plumbline.variables import variable

_SECONDS = 60.0
_ASK = """
import json, platform, sys, sysconfig
abi = sysconfig.get_config_var("SOABI") or "unknown"
print(json.dumps({"version": platform.python_version(), "abi": abi, "paths": sys.path}))
"""


@dataclass(frozen=True, slots=True)
class Base:
    """Interpreter of the environment that is compared with its upgrade."""

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
        """Return its version as `3.12`."""
        return ".".join(self.version.split(".")[:2])

    @property
    def markers(self) -> dict[str, str]:
        """Return what its locks' markers see instead of this process's interpreter."""
        return {
            "python_version": self.minor, "python_full_version": self.version, "implementation_version": self.version,
        }  # fmt: skip


def this_base() -> Base:
    """Return this process's own interpreter."""
    abi = str(sysconfig.get_config_var("SOABI") or "unknown")
    lock = variable("PLUMBLINE_LOCK")
    return Base(
        Path(sys.executable), platform.python_version(), abi, tuple(sys.path), lock=Path(lock) if lock else None
    )


def base_of(given: str) -> Base:
    """Return the interpreter of a team's environment; of "", this process's own.

    Raise `ConfigurationError` for one that cannot train.
    """
    if given:
        return team_base(given)
    check_libraries()
    return this_base()


def team_base(given: str) -> Base:
    """Return the interpreter of a team's environment, by its path or its environment's folder.

    Raise `ConfigurationError` for an environment that cannot train.
    """
    # Imported for a team's environment only: an environment of the gate, which imports this module, needs no doctor.
    from plumbline.doctor.place import check_trainer

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
