"""Installer of pinned packages into a folder, by uv or pip.

uv is used if it is installed and would ask the same indexes as pip.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from plumbline.data.staging.scratch import scratch_folder
from plumbline.environments.locks.model import Pin
from plumbline.environments.python_modules import module_command
from plumbline.schema.errors import UnavailableError
from plumbline.schema.escape import redact

Kind = Literal["pip", "uv"]
_SECONDS = 3600
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
_BUILD_NAMES = frozenset({
    "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy",
    "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "NETRC", "XDG_CONFIG_HOME", "CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "MAX_JOBS",
    "SSH_AUTH_SOCK", "SSH_ASKPASS", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND", "SOURCE_DATE_EPOCH",
})  # fmt: skip
_BUILD_PREFIXES = ("LC_", "PIP_", "UV_", "CUDA_", "TORCH_", "CMAKE_")
_USER_FILES = {
    "XDG_CONFIG_HOME": ".config", "PIP_CONFIG_FILE": ".pip/pip.conf", "NETRC": ".netrc",
    "GIT_CONFIG_GLOBAL": ".gitconfig",
}  # fmt: skip
"""Settings of pip, uv and git in the user's home, by the variable that names their place."""
_PIP = (*module_command(sys.executable, "pip"), "--disable-pip-version-check")


class Installer:
    """Wrapper around uv or pip.

    `arguments` are the user's own, such as `--find-links=FOLDER`.
    """

    def __init__(self, kind: Kind = "pip", arguments: Sequence[str] = (), python: Path | None = None) -> None:
        self._kind = kind
        self._python = [] if python in {None, Path(sys.executable)} else ["--python", str(python)]
        self._arguments = tuple(arguments)

    @property
    def identity(self) -> tuple[str, ...]:
        """Return all settings that decide which archive a pin selects.

        These are the installer, its arguments, and its index variables.
        """
        prefixes = ("PIP_", "UV_")
        ours = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(prefixes)]
        return (self._kind, *self._arguments, *(line for line in ours if "INDEX" in line or "FIND_LINKS" in line))

    def install(self, pins: Sequence[Pin], target: Path) -> str | None:
        """Install exactly these pins below the prefix `target`; all or none have hashes.

        Return `None`, or the installer's message if it fails.
        """
        hashed = all(pin.is_hashed for pin in pins)
        with scratch_folder() as folder:
            listed = folder / "requirements.txt"
            listed.write_text("".join(f"{pin.requirement}\n" for pin in pins), encoding="utf-8")
            # `--target` loses what belongs below the prefix's `lib`. pip would leave out what its own environment has.
            place = ["--prefix", str(target), *([] if self._kind == "uv" else ["--ignore-installed"])]
            command = [*self._install_command(hashed=hashed), *place, "-r", str(listed)]
            done = self._run(command, str(target))
        return None if done.returncode == 0 else _last_words(done)

    def _install_command(self, *, hashed: bool) -> list[str]:
        # No isolation: an index would serve what a build requires, and no lock has its hashes.
        checked = ["--require-hashes", "--no-build-isolation"] if hashed else []
        # No cache: a wheel that was built beside another torch has the same name as one that was not.
        if self._kind == "uv":
            command = ["uv", "pip", "install", "--quiet", "--no-cache", "--no-deps", "--compile-bytecode", *checked]
            return [*command, *(self._python or ["--python", sys.executable]), *self._arguments]
        pip = [*_PIP, *self._python]
        return [*pip, "install", "--quiet", "--no-cache-dir", "--no-deps", *checked, *self._arguments]

    def check_index(self, pin: Pin) -> None:
        """Raise `UnavailableError` if no package index responds.

        The indexes are asked for pip's versions; if they list none, for this package's. A download would build.
        """
        if pin.url or self._listed("pip").returncode == 0:
            return
        known = self._listed(pin.name)
        if known.returncode:
            raise UnavailableError(f"no index has it: {_last_words(known)}", where=pin.name)

    def versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a package that the index lists.

        They fit this interpreter; empty if the index lists none.
        """
        listed = self._listed(name).stdout.splitlines()
        lines = [line.strip() for line in listed if line.strip().startswith(_VERSIONS)]
        return tuple(part.strip() for part in lines[0].removeprefix(_VERSIONS).split(",")) if lines else ()

    def _listed(self, name: str) -> subprocess.CompletedProcess[str]:
        return self._run([*_PIP, *self._python, "index", "versions", *self._arguments, name], name)

    def _run(self, command: list[str], where: str) -> subprocess.CompletedProcess[str]:
        try:
            with scratch_folder() as home:
                environment = build_environment(os.environ, home)
                return subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_SECONDS, env=environment
                )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"not installed within {_SECONDS} s", where=where) from error


def build_environment(given: Mapping[str, str], home: Path) -> dict[str, str]:
    """Return an environment for the installer, without credentials.

    `home` is an empty folder, in which no tool finds a profile. The installer keeps its own settings.
    """
    kept = {name: value for name, value in given.items() if name in _BUILD_NAMES or name.startswith(_BUILD_PREFIXES)}
    user = Path(given.get("HOME") or "~").expanduser()
    for name, place in _USER_FILES.items():
        if name not in kept and (user / place).exists():
            kept[name] = str(user / place)
    return {**kept, "HOME": str(home)}


def choose_installer(arguments: Sequence[str] = (), python: Path | None = None) -> Installer:
    """Return uv as installer if it would act like pip; else pip.

    uv has to be on the path, and neither arguments nor pip's settings decide what is installed.
    """
    has_uv = not arguments and shutil.which("uv") is not None
    return Installer("uv" if has_uv and not _has_pip_settings() else "pip", arguments, python)


def _has_pip_settings() -> bool:
    """Return whether pip has its own settings, such as an index.

    For example an index, a certificate or a constraint, in a variable or in a file.
    """
    # `pip config list` writes LEVEL.KEY='VALUE'.
    command = [*_PIP, "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    keys = {line.partition("=")[0].rpartition(".")[2] for line in done.stdout.splitlines() if line.strip()}
    return not keys <= _HARMLESS


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    if causes:
        return redact(f"{lines[0]}: {_last_cause(lines) or causes[-1]}")[:500]
    errors = [line for line in lines if line.lower().startswith("error:")] or lines or ["no message"]
    # A build that failed: the installer quotes its output before its own error, and the last line of it is the reason.
    quoted = [place for place, line in enumerate(lines) if line == _END_OF_BUILD and place]
    message = f"{errors[-1]}: {lines[quoted[-1] - 1]}" if quoted else errors[-1]
    return redact(message)[:500]


def _last_cause(lines: Sequence[str]) -> str:
    """Return the last line of build output in uv's error message.

    Empty if no build failed.
    """
    if "[stderr]" not in lines:
        return ""
    quoted = [line for line in lines[lines.index("[stderr]") + 1 :] if not line.startswith("hint: ")]
    return quoted[-1] if quoted else ""
