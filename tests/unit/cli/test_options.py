"""Output paths that cannot be written are refused first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from plumbline.cli.options import check_file, check_folder, program
from plumbline.schema.errors import ConfigurationError


def test_what_can_be_written_or_made_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").write_text("x")
    check_file(tmp_path / "old")
    check_file(tmp_path / "new")
    check_file(tmp_path / "a" / "b" / "new", parents=True)
    check_folder(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    check_file(Path("new"))
    check_folder(Path("a/b"))
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old").write_text("x")
    # As root, no mode refuses anything.
    monkeypatch.setattr(os, "access", lambda *_: False)
    for check, name in ((check_file, "old"), (check_file, "new"), (check_folder, "new"), (check_folder, "")):
        with pytest.raises(ConfigurationError, match="--out: may not be written"):
            check(tmp_path / name)


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigurationError, match="link: --out: is not a folder"):
        check_folder(tmp_path / "link" / "x")


def test_the_next_command_is_one_that_this_shell_finds(tmp_path, monkeypatch):
    """After `make run` the command is in .venv, and not yet on the path."""
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/plumbline").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program() == ".venv/bin/plumbline"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    (tmp_path / ".venv/bin/plumbline").chmod(0o755)
    assert program() == "plumbline"
