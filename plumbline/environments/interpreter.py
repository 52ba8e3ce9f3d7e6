"""Interpreter for the trainer: the worker's, or a team environment's.

The training environment needs neither Plumbline nor any package of the worker. It imports this worker's Plumbline from
a folder that contains nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from plumbline.data.staging.scratch import scratch_folder
from plumbline.environments.python_modules import code_command
from plumbline.schema.errors import ConfigurationError

SUPPORTED = {
    "python": ((3, 10), (3, 14)),
    "torch": ((2, 4), (2, 15)),
    "transformers": ((4, 41), (5, 24)),
    "tokenizers": ((0, 19), (0, 23)),
    "safetensors": ((0, 4), (0, 9)),
    "numpy": ((1, 26), (2, 9)),
    "pyarrow": ((14, 0), (99, 0)),
    "pydantic": ((2, 5), (2, 99)),
}
"""Lowest and highest minor version of the trainer's Python and libraries; the only place of these numbers."""
CAPTURING = ("python", "torch", "safetensors", "numpy", "pydantic")
"""What `plumbline.capture` needs of a team's environment."""
_STATED = ("python", "torch", "transformers")
"""A note is written where one of these is newer than its highest version, which is the newest that was tested."""
LOCK_NAMES = ("pylock.toml", "uv.lock", "poetry.lock", "conda-lock.yml", "requirements.txt")
"""Locks that are looked for in an environment's folder, then beside it."""
_MACHINES = ("x86_64", "aarch64", "arm64", "ppc64le", "s390x", "riscv64", "armv7l")
_AGAIN = "install it again, for this machine"
_CODE = Path(__file__).parents[1]
_CHECK_SECONDS = 60.0
_CRASHES = tuple(-signal.Signals[name] for name in ("SIGBUS", "SIGSEGV", "SIGILL", "SIGABRT", "SIGFPE")
                 if name in signal.Signals.__members__)  # fmt: skip
_ASK = """
import json, platform, sys
found = {"python": "%d.%d.%d" % sys.version_info[:3], "machine": platform.machine(), "prefix": sys.prefix}
try:
    from importlib.metadata import version
except ImportError:
    version = None
for name in sys.argv[1:]:
    try:
        found[name] = version(name) or ""
    except (ImportError, TypeError):  # not installed, or no reader of metadata: Python before 3.8
        found[name] = ""
print(json.dumps(found))
"""


class UnfitLibraryError(ConfigurationError):
    """Library that is missing, unsupported, or built for another machine."""

    library = ""


def _unfit(name: str, what: str, *, where: str, key: str = "", hint: str) -> UnfitLibraryError:
    error = UnfitLibraryError(what, where=where, key=key, hint=hint)
    error.library = name
    return error


def tested_range(name: str) -> str:
    """Return the lowest and highest tested version of a library."""
    return " to ".join(map(_dotted, SUPPORTED[name]))


def is_tested(name: str, installed: str) -> bool:
    """Return whether a library version, such as `2.6.0+cu124`, is tested."""
    minor = _minor(installed)
    return minor is not None and SUPPORTED[name][0] <= minor <= SUPPORTED[name][1]


def _minor(installed: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", installed)
    return match and (int(match[1]), int(match[2]))


def check_libraries(
    found: Mapping[str, str] | None = None, where: str = "", needed: Collection[str] = SUPPORTED
) -> tuple[str, ...]:  # fmt: skip
    """Return a note for each untested newer library. `found` has versions by name, "" for a missing one.

    Raise `UnfitLibraryError` for a library that is missing or older: it may lack what the trainer calls, or compute
    something else. By default this process is checked, and whether its libraries were built for this machine.
    """
    is_own = found is None
    found = _installed() if found is None else found
    notes = []
    for name, (lowest, highest) in SUPPORTED.items():
        if name not in needed:
            continue
        installed = found.get(name, "")
        accepted = tested_range(name) if name in _STATED else f"{_dotted(lowest)} or newer"
        hint = f"the trainer needs {name} {accepted}"
        if not installed:
            raise _unfit(name, "is not installed", where=where or sys.prefix, key=name, hint=hint)
        machine = _other_machine(name) if is_own and name != "python" else ""
        if machine:
            what = f"{name} {installed} is built for {machine}, this machine is {platform.machine()}"
            raise _unfit(name, what, where=sys.prefix, hint=_AGAIN)
        minor = _minor(installed)
        if minor is None:
            continue  # a build without a number
        if minor < lowest:
            what = f"{name} {installed} is older than {_dotted(lowest)}"
            raise _unfit(name, what, where=where or sys.prefix, hint=hint)
        if minor > highest and name in _STATED:
            notes.append(f"note: {name} {installed} is newer than what was tested: {accepted}")
    return tuple(notes)


def _installed() -> dict[str, str]:
    return {name: platform.python_version() if name == "python" else _version(name) for name in SUPPORTED}


def _version(name: str) -> str:
    try:
        return version(name) or ""
    except PackageNotFoundError:
        return ""


def _other_machine(name: str) -> str:
    """Return the other machine type that a wheel targets, else ""."""
    about = distribution(name).read_text("WHEEL") or ""
    places = [line.rpartition("-")[2] for line in about.splitlines() if line.startswith("Tag:")]
    if any(place.endswith(platform.machine()) for place in places):
        return ""
    return next((machine for machine in _MACHINES for place in places if place.endswith(machine)), "")


def refuse_crash(code: int, python: str | Path, variables: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if importing a single library also crashes the interpreter.

    A file that is cut off, or code for another processor, ends a process without an exception.
    """
    if code not in _CRASHES:
        return
    for name in SUPPORTED:
        if name == "python":
            continue
        command = code_command(python, f"import {name}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                command, env=dict(variables), capture_output=True, timeout=_CHECK_SECONDS, check=False
            )
            if done.returncode in _CRASHES:
                what = f"cannot be loaded: its import ends by {signal.Signals(-done.returncode).name}"
                raise ConfigurationError(what, where=str(Path(python).parent.parent), key=name, hint=_AGAIN)


def _dotted(minor: tuple[int, int]) -> str:
    return ".".join(map(str, minor))


def find_python(given: str | Path, key: str = "python") -> Path:
    """Find the interpreter at a path, or in an environment's folder.

    The path is not resolved: an environment's interpreter is a link, and finds its packages by its own place.
    """
    path = Path(given).expanduser().absolute()
    candidates = [path / "bin" / "python", path / "bin" / "python3"] if path.is_dir() else [path]
    python = next((file for file in candidates if file.is_file() and os.access(file, os.X_OK)), None)
    if python is None:
        what = "contains no bin/python" if path.is_dir() else "is not an interpreter"
        hint = "name a Python interpreter, or the folder of a virtual or conda environment"
        raise ConfigurationError(what, where=str(path), key=key, hint=hint)
    return python


def _ask(python: Path) -> dict[str, str]:
    """Run an interpreter to ask for its library versions."""
    command = [*code_command(python, _ASK), *(name for name in SUPPORTED if name != "python")]
    hint = "name an interpreter that runs on this machine"
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, errors="replace", timeout=_CHECK_SECONDS,
            check=False,
        )  # fmt: skip
        answer: dict[str, str] = json.loads(done.stdout)
    except OSError as error:
        what = f"cannot be started: {error.strerror}"
        raise ConfigurationError(what, where=str(python), key="python", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        what = f"does not answer within {_CHECK_SECONDS:g} s"
        raise ConfigurationError(what, where=str(python), key="python", hint=hint) from error
    except ValueError as error:
        said = (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]
        raise ConfigurationError(f"does not run: {said}", where=str(python), key="python", hint=hint) from error
    return answer


def _environment() -> dict[str, str]:
    """Return the environment without variables that expose this process's packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


@dataclass(frozen=True)
class TrainerPython:
    """Interpreter of a team's environment, which imports this process's Plumbline."""

    python: Path
    versions: dict[str, str]
    """Of Python and of the trainer's libraries."""
    folder: Path
    """Its working directory, from which Python imports before anything else."""

    def variables(self) -> dict[str, str]:
        """Return environment variables for the trainer process: Plumbline's path, and the lock."""
        return {
            "PYTHONPATH": str(self.folder), "PYTHONHOME": "",
            "PLUMBLINE_LOCK": str(lock_of(self.python) or ""), "VIRTUAL_ENV": str(self.python.parent.parent),
        }  # fmt: skip


def lock_of(python: Path) -> Path | None:
    """Return the lock file in or next to an environment's folder."""
    folder = python.parent.parent
    files = (place / name for place in (folder, folder.parent) for name in LOCK_NAMES)
    return next((file for file in files if file.is_file()), None)


@contextmanager
def trainer_python(given: str, needed: Collection[str] = SUPPORTED) -> Iterator[TrainerPython]:
    """Yield a team environment's interpreter, by path or folder, with its libraries checked."""
    python = find_python(given)
    found = _ask(python)
    for note in check_libraries(found, where=found.get("prefix", str(python)), needed=needed):
        sys.stderr.write(f"{note}\n")
    # Below the system's temporary folder, so that the path is not part of a record.
    with scratch_folder("plumbline-code-") as folder:
        (folder / "plumbline").symlink_to(_CODE, target_is_directory=True)
        yield TrainerPython(python, found, folder)
