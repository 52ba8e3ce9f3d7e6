"""Errors of commands: one line on stderr, and never drift's exit code."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli import history
from plumbline.cli import main as command_line
from plumbline.cli.main import main
from plumbline.schema.errors import ConfigurationError, CorruptDataError, DiskFullError, ExitCode, UnavailableError
from plumbline.schema.extras import resource


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[str]:
    """Return a command line whose command raises this error."""

    def run(_args: argparse.Namespace) -> int:
        raise error

    monkeypatch.setattr(history, "run", run)
    return ["history", "suite.toml"]


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["compare", "{root}/a", "{root}/nope"], 2),
        (["train", "{root}/nope", "--out", "{root}/o"], 2),
        (["spec", "{root}/nosuch.toml", "w", "--out", "{root}/x"], 2),
    ],
)
def test_debug_adds_a_traceback_and_changes_no_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int
) -> None:
    argv = [word.format(root=tmp_path) for word in argv]
    assert main(argv) == code
    line = capsys.readouterr().err
    assert len(line.splitlines()) == 1
    assert main(["--debug", *argv]) == code
    output = capsys.readouterr().err
    assert "Traceback" in output
    assert output.endswith(line)


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("two\nlines"), AssertionError(), RecursionError("deep")])
def test_what_nobody_foresaw_is_one_line_and_no_drift(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    argv = failing(monkeypatch, error)
    assert main(argv) == 3
    output = capsys.readouterr().err
    assert len(output.splitlines()) == 1
    assert f"a defect of Plumbline, not of its input: {type(error).__name__}" in output
    assert "--debug" in output
    assert main(["--debug", *argv]) == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_command_that_cannot_be_loaded_is_no_drift(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[Any]:
        raise ImportError("plumbline.flows.commands.run is cut off")

    monkeypatch.setattr(command_line, "_commands", broken)
    assert main(["history", "suite.toml"]) == 3
    assert "plumbline.flows.commands.run is cut off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((getattr(errno, name), 2) for name in ("ENOENT", "ENOTDIR", "EISDIR", "EEXIST", "EACCES", "EROFS")),
        *((getattr(errno, name), 3) for name in ("ENOSPC", "EDQUOT", "EIO", "ECONNREFUSED")),
    ],
)
def test_a_wrong_path_is_wrong_usage_and_a_failing_machine_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    words = os.strerror(number)
    assert main(failing(monkeypatch, OSError(number, words, "some/path"))) == code
    assert capsys.readouterr().err == f"plumbline: some/path: {words}\n"


LATE = ["numpy", "pyarrow", "pydantic", "prefect", "torch", "plumbline.judge", "plumbline.records"]


def loaded_by(*argv: str) -> set[str]:
    """Return the large libraries that a command line imports before its command."""
    code = f"import sys, plumbline.cli.main as m; m._parser({argv!r}); print(*(set({LATE!r}) & sys.modules.keys()))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(output.stdout.split())


def test_a_round_does_not_wait_for_what_other_commands_load() -> None:
    assert loaded_by("run", "suite.toml") <= {"pydantic"}
    assert loaded_by("--debug", "deploy", "suite.toml") <= {"pydantic"}
    assert loaded_by("--help") == loaded_by("compare", "a", "b") == set()


def test_every_command_stands_under_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    offered = re.findall(r"^    (\w+)  ", capsys.readouterr().out, re.MULTILINE)
    assert {"run", "deploy", "compare", "store"} <= set(offered)
    assert len(offered) <= 14
    for name in offered:
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: plumbline {name} ")


@pytest.mark.parametrize(
    ("error", "code", "verdict"),
    [
        (KeyboardInterrupt(), 3, "inconclusive"),
        (CorruptDataError("does not match its digest", where="a/rows.parquet", key="parts", hint="x"), 4, "invalid"),
        (UnavailableError("no answer"), 3, "inconclusive"),
        (ConfigurationError("unknown key", where="s.toml", key="gates"), 2, None),
        (OSError(errno.EIO, "Input/output error", "x"), 3, "inconclusive"),
        (OSError("no number"), 3, "inconclusive"),
        (DiskFullError("full"), 3, "inconclusive"),
        (MemoryError(), 3, "inconclusive"),
        (KeyError("x"), 3, "inconclusive"),
    ],
)
def test_json_is_printed_on_every_outcome(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    verdict: str | None,
) -> None:
    assert main([*failing(monkeypatch, error), "--json"]) == code
    output = json.loads(capsys.readouterr().out)
    assert (output["verdict"], output["exit_code"], output["findings"], output["causes"]) == (verdict, code, [], [])
    assert output["error"]["message"]
    if isinstance(error, CorruptDataError):
        assert output["error"] | {"message": ""} == {
            "message": "", "where": "a/rows.parquet", "key": "parts", "hint": "x",
        }  # fmt: skip
    assert main(failing(monkeypatch, error)) == code
    found = capsys.readouterr()
    assert (found.out, len(found.err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    "argv",
    [
        ["compare", "{root}/a", "--json"],
        ["upgrade", "{root}/nosuch.toml", "--candidate", "{root}/lock", "--json"],
        ["upgrade", "--json"],
    ],
)
def test_what_cannot_be_read_is_json_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "record.json").write_text("{}", encoding="utf-8")
    words = [word.format(root=tmp_path) for word in argv]
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(str(ended.code))
    output = json.loads(capsys.readouterr().out)
    assert code == output["exit_code"] == (4 if argv[0] == "compare" else 2)
    assert output["error"]["message"]


def test_a_terminal_gets_no_escape_sequence_of_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(failing(monkeypatch, CorruptDataError("\x1b[2Jgone \x9b1m"))) == 4
    assert not set(capsys.readouterr().err) & {"\x1b", "\x9b"}


def test_a_team_s_own_flows_and_tasks_do_not_hide_the_product_s(tmp_path: Path) -> None:
    for name in ("flows", "tasks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the folder of the team')\n")
    argv = [sys.executable, "-m", "plumbline", "run", "nosuch.toml"]
    output = subprocess.run(
        argv, cwd=tmp_path, env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True, check=False
    )
    assert (output.returncode, output.stdout) == (2, "")
    assert output.stderr.startswith("plumbline: nosuch.toml: ")


@pytest.mark.parametrize("command", ["store site", "history", "baseline calibrate", "store prune"])
def test_a_relative_store_seen_from_a_different_folder_is_no_empty_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """`plumbline store site ../team/suite.toml` looked below the working folder, and showed an empty site."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main([*command.split(), str(resource("deployments/suites/local.toml"))]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/elsewhere/.plumbline/central: store: no such folder (hint: " in said
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["comapre", "a", "b"], "plumbline: comapre: no such command (hint: did you mean 'compare'?)"),
        (["options"], "plumbline: options: no such command (hint: `plumbline --help` lists the commands)"),
        (["run", "--port", "80000"], "argument --port: '80000' is not a port (1 to 65535)"),
    ],
)
def test_a_slip_on_the_command_line_is_answered_with_what_is_right(
    capsys: pytest.CaptureFixture[str], argv: list[str], line: str
) -> None:
    try:
        code = main(argv)
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == ExitCode.USAGE
    assert line in capsys.readouterr().err


def test_a_comparison_loads_no_pandas_and_no_templates() -> None:
    """It takes half a CPU second without them, and more than a second with them."""
    code = "import sys; from plumbline.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    record = str(Path(__file__).parents[1] / "judge" / "h100" / "cpu")
    command = [sys.executable, "-c", code, "compare", record, record]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert not {"pandas", "torch", "prefect", "jinja2"}.intersection(done.stderr.split())


def test_a_page_that_a_hint_names_is_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    hint = "docs/how-to/alerts.md shows some; docs/none.md does not exist"
    assert main(failing(monkeypatch, ConfigurationError("is wrong", hint=hint))) == 2
    line = capsys.readouterr().err
    assert Path(line.partition("(hint: ")[2].partition(" shows")[0]).is_file()
    assert "docs/none.md does not exist" in line
