"""Installs pins into a folder: uv where it is installed and asked the same indexes as pip, otherwise pip."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from plumbline.errors import UnavailableError
from plumbline.upgrade.locks.model import Pin

__all__ = ["Installer", "choose_installer"]

Kind = Literal["pip", "uv"]
_SECONDS = 3600
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^@\s/]+@")
_END_OF_BUILD = "[end of output]"
_VERSIONS = "Available versions:"
"""In the output of `pip index versions`, which offers JSON from pip 25.1 on only."""
_PIP = ("-m", "pip", "--disable-pip-version-check")


class Installer:
    """Runs the installer; `arguments` are the user's own, such as `--find-links=FOLDER`."""

    def __init__(self, kind: Kind = "pip", arguments: Sequence[str] = ()) -> None:
        self._kind = kind
        self._arguments = tuple(arguments)

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides which archive a pin means here: the installer, its arguments and its variables."""
        prefixes = ("PIP_", "UV_")
        ours = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(prefixes)]
        return (self._kind, *self._arguments, *(line for line in ours if "INDEX" in line or "FIND_LINKS" in line))

    def install(self, pins: Sequence[Pin], target: Path) -> str | None:
        """Install exactly these pins into `target`; return the installer's message if it fails."""
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "requirements.txt"
            listed.write_text("".join(f"{pin.requirement}\n" for pin in pins), encoding="utf-8")
            done = self._run([*self._install_command(), "--target", str(target), "-r", str(listed)], str(target))
        return None if done.returncode == 0 else _last_words(done)

    def _install_command(self) -> list[str]:
        if self._kind == "uv":
            command = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--compile-bytecode"]
            return [*command, *self._arguments]
        # No cache: a wheel that was built beside another torch has the same name as one that was not.
        return [sys.executable, *_PIP, "install", "--quiet", "--no-cache-dir", "--no-deps", *self._arguments]

    def check_index(self, pin: Pin) -> None:
        """Raise `UnavailableError` if the index has no answer for any version of the package."""
        if pin.url:
            return
        with tempfile.TemporaryDirectory() as folder:
            # Whether the pinned version exists is known already: here, that the index answers at all.
            asked = [sys.executable, *_PIP, "download", "--quiet", "--no-deps", "--no-cache-dir", *self._arguments]
            done = self._run([*asked, "--dest", folder, "pip"], "pip")
            if done.returncode == 0:
                return
            known = self._run([*asked, "--dest", folder, pin.name], pin.name)
        if known.returncode:
            raise UnavailableError(f"no index has it: {_last_words(known)}", where=pin.requirement)

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a package that the index has for this interpreter; none where it lists none."""
        done = self._run([sys.executable, *_PIP, "index", "versions", *self._arguments, name], name)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith(_VERSIONS)]
        return tuple(part.strip() for part in lines[0].removeprefix(_VERSIONS).split(",")) if lines else ()

    def _run(self, command: list[str], where: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"not installed within {_SECONDS} s", where=where) from error


def choose_installer(arguments: Sequence[str] = ()) -> Installer:
    """Return uv's installer where uv is on the path and pip was told of no index of its own, else pip's."""
    pip_alone = bool(arguments) or any(name.startswith("PIP_") for name in os.environ) or _has_pip_settings()
    return Installer("pip" if pip_alone or shutil.which("uv") is None else "uv", arguments)


def _has_pip_settings() -> bool:
    done = subprocess.run([sys.executable, *_PIP, "config", "list"], capture_output=True, text=True, check=False)
    return bool(done.stdout.strip())


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or ["no message"]
    # A build that failed: the installer quotes its output before its own error, and the last line of it is the reason.
    quoted = [place for place, line in enumerate(lines) if line == _END_OF_BUILD and place]
    message = f"{errors[-1]}: {lines[quoted[-1] - 1]}" if quoted else errors[-1]
    return _PASSWORD.sub(r"\1:***@", message)[:500]
