"""Installation of pins into a folder, by uv or pip.

uv is used if it is installed and would ask the same indexes as pip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from plumbline.errors import UnavailableError
from plumbline.staging.scratch import scratch_folder
from plumbline.upgrade.locks.model import Pin

__all__ = ["Installer", "choose_installer"]

Kind = Literal["pip", "uv"]
_SECONDS = 3600
_PASSWORD = re.compile(r"(://[^/\s:@]*):[^@\s/]+@")
_END_OF_BUILD = "[end of output]"
_VERSIONS = "Available versions:"
"""In the output of `pip index versions`, which offers JSON from pip 25.1 on only."""
_CAUSE = "cause: "
"""In uv's messages, below the line that begins with `error:`; the output of a build follows, indented."""
_HARMLESS = frozenset({
    "cache-dir", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-input", "no-warn-script-location",
    "progress-bar", "quiet", "require-virtualenv", "retries", "root-user-action", "timeout", "user", "verbose",
})  # fmt: skip
"""Settings of pip that do not decide what is installed into a folder; images set several."""
_PIP = ("-m", "pip", "--disable-pip-version-check")


class Installer:
    """Wrapper around pip or uv.

    `arguments` are the user's own, such as `--find-links=FOLDER`.
    """

    def __init__(self, kind: Kind = "pip", arguments: Sequence[str] = ()) -> None:
        self._kind = kind
        self._arguments = tuple(arguments)

    @property
    def identity(self) -> tuple[str, ...]:
        """Return everything that decides which archive a pin means.

        It is the installer, its arguments, and its variables of indexes.
        """
        prefixes = ("PIP_", "UV_")
        ours = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(prefixes)]
        return (self._kind, *self._arguments, *(line for line in ours if "INDEX" in line or "FIND_LINKS" in line))

    def install(self, pins: Sequence[Pin], target: Path) -> str | None:
        """Install exactly these pins into `target`.

        Return `None`, or the installer's message if it fails.
        """
        with scratch_folder() as folder:
            listed = folder / "requirements.txt"
            listed.write_text("".join(f"{pin.requirement}\n" for pin in pins), encoding="utf-8")
            done = self._run([*self._install_command(), "--target", str(target), "-r", str(listed)], str(target))
        return None if done.returncode == 0 else _last_words(done)

    def _install_command(self) -> list[str]:
        # No cache: a wheel that was built beside another torch has the same name as one that was not.
        if self._kind == "uv":
            command = ["uv", "pip", "install", "--quiet", "--no-cache", "--no-deps", "--compile-bytecode"]
            return [*command, "--python", sys.executable, *self._arguments]
        return [sys.executable, *_PIP, "install", "--quiet", "--no-cache-dir", "--no-deps", *self._arguments]

    def check_index(self, pin: Pin) -> None:
        """Raise `UnavailableError` if no index answers.

        The indexes are asked for pip; if that fails, for any version of this package.
        """
        if pin.url:
            return
        with scratch_folder() as folder:
            # Whether the pinned version exists is known already: here, that the index answers at all.
            command = [sys.executable, *_PIP, "download", "--quiet", "--no-deps", "--no-cache-dir", *self._arguments]
            done = self._run([*command, "--dest", str(folder), "pip"], "pip")
            if done.returncode == 0:
                return
            known = self._run([*command, "--dest", str(folder), pin.name], pin.name)
        if known.returncode:
            raise UnavailableError(f"no index has it: {_last_words(known)}", where=pin.requirement)

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a package that the index lists.

        They fit this interpreter; empty if the index lists none.
        """
        done = self._run([sys.executable, *_PIP, "index", "versions", *self._arguments, name], name)
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith(_VERSIONS)]
        return tuple(part.strip() for part in lines[0].removeprefix(_VERSIONS).split(",")) if lines else ()

    def _run(self, command: list[str], where: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"not installed within {_SECONDS} s", where=where) from error


def choose_installer(arguments: Sequence[str] = ()) -> Installer:
    """Return uv's installer if it acts like pip's.

    uv has to be on the path, and neither arguments nor pip's settings decide what is installed. Otherwise return pip's.
    """
    has_uv = not arguments and shutil.which("uv") is not None
    return Installer("uv" if has_uv and not _has_pip_settings() else "pip", arguments)


def _has_pip_settings() -> bool:
    """Return whether pip has settings that decide what is installed.

    For example an index, a certificate or a constraint, in a variable or in a file.
    """
    # `pip config list` writes LEVEL.KEY='VALUE'.
    done = subprocess.run([sys.executable, *_PIP, "config", "list"], capture_output=True, text=True, check=False)
    keys = {line.partition("=")[0].rpartition(".")[2] for line in done.stdout.splitlines() if line.strip()}
    return not keys <= _HARMLESS


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    if causes:
        return _PASSWORD.sub(r"\1:***@", f"{lines[0]}: {_last_cause(lines) or causes[-1]}")[:500]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or ["no message"]
    # A build that failed: the installer quotes its output before its own error, and the last line of it is the reason.
    quoted = [place for place, line in enumerate(lines) if line == _END_OF_BUILD and place]
    message = f"{errors[-1]}: {lines[quoted[-1] - 1]}" if quoted else errors[-1]
    return _PASSWORD.sub(r"\1:***@", message)[:500]


def _last_cause(lines: Sequence[str]) -> str:
    """Return the last line of build output in uv's message.

    Empty if no build failed.
    """
    if "[stderr]" not in lines:
        return ""
    quoted = [line for line in lines[lines.index("[stderr]") + 1 :] if not line.startswith("hint: ")]
    return quoted[-1] if quoted else ""
