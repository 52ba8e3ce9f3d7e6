"""`plumbline --print-completion bash`, in a real bash; options of all commands before and after the command."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.cli.display import Display
from plumbline.cli.main import main

BASH = shutil.which("bash") or "bash"


def test_bash_completes_commands_options_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    assert ended.value.code == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "nightly.toml").touch()
    lines = ("plumbline expl", "plumbline store export --la", "plumbline store export --to tens", "plumbline run nigh")
    typed = "\n".join(
        f'COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}; _shtab_plumbline; echo "${{COMPREPLY[@]}}"'
        for line in lines
    )
    command = [BASH, "--norc", "-c", f"source ./script\n{typed}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.split() == ["explain", "--last", "tensorboard", "nightly.toml"]


def test_quiet_shows_no_progress_and_stands_anywhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLUMBLINE_QUIET", "")
    for argv, shown in ((["explain", "rng"], True), (["explain", "rng", "--quiet"], False)):
        assert main(argv) == 0
        assert "rng" in capsys.readouterr().out
        with Display("round x") as display:
            display.say("a note")
        assert ("a note" in capsys.readouterr().err) is shown
    assert main(["--quiet", "explain", "nonsense"]) == 2
    assert "unknown code" in capsys.readouterr().err


def test_verbose_shows_logs() -> None:
    program = (
        "import logging, sys; from plumbline.cli import explain; from plumbline.cli.main import main;"
        "explain.run = lambda args: logging.getLogger('x').info('a request') or 0; sys.exit(main(sys.argv[1:]))"
    )
    for options, shown in (([], False), (["--verbose"], True)):
        command = [sys.executable, "-c", program, "explain", "rng", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert ("a request" in done.stderr) is shown
