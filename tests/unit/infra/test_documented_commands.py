"""Each documented command exists, and knows its documented options."""

from __future__ import annotations

import re
import subprocess
import tomllib
from argparse import ArgumentParser

import pytest

from plumbline.cli import main as cli
from plumbline.local.services import worker_command
from tests.unit.infra.documented_commands import ROOT, Command, commands

COMMANDS = commands()
GROUPS = ("baseline", "data", "store")


def of(*programs: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0] in programs]


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    return cli.build_parser(cli.all_commands())


def is_worker(command: Command) -> bool:
    return command.words[:3] == ("prefect", "worker", "start")


def test_a_documented_worker_starts_as_the_tests_start_theirs() -> None:
    started = worker_command("plumbline", "name", limit=None)
    for command in filter(is_worker, COMMANDS):
        pool = {command.words[index + 1] for index, word in enumerate(command.words) if word == "--pool"}
        assert set(command.words[1:]) - pool <= set(started), str(command)


@pytest.mark.parametrize("command", of("plumbline"), ids=str)
def test_plumbline_knows_its_documented_commands(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    name, *arguments = [word.strip("[]") for word in command.words[1:] if word != "..."]
    for part in arguments[0].split("/") if name in GROUPS and arguments else [""]:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([name, *filter(None, [part]), "--help"])
        shown = capsys.readouterr().out
        assert ended.value.code == 0
        assert shown.startswith(f"usage: plumbline {name} {part}".rstrip())
        options = {word for word in arguments if word.startswith("--")}
        assert options <= set(re.findall(r"--[\w-]+", shown))
    # A sentence may leave out what a command needs; a line to copy may not.
    if command.is_whole:
        parser.parse_args([name, *arguments])


def test_a_documented_extra_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    documented = re.findall(
        r"^\| `(\w+)` \| .* \|$", (ROOT / "README.md").read_text("utf-8").split("| extra |")[1], re.MULTILINE
    )
    assert set(documented[: len(project["optional-dependencies"]) - 1]) == project["optional-dependencies"].keys() - {
        "dev"
    }
    asked = {
        name
        for command in of("pip")
        for extras in re.findall(r"\[([\w,]+)]", command.text)
        for name in extras.split(",")
    }
    assert asked
    assert asked <= set(documented)


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_make_knows_its_documented_targets(command: Command) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *command.words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", of("python", "python3", "bash"), ids=str)
def test_documented_programs_exist_and_have_their_options(command: Command) -> None:
    words = [word.strip("[]") for word in command.words[1:]]
    if words[:2] == ["-m", "venv"] or words[:1] == ["train.py"]:  # a team's own script
        return
    if words[:2] == ["-m", "pytest"]:
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
        return
    path = ROOT / (words[1].replace(".", "/") if words[0] == "-m" else words[0])
    sources = [path, path.with_suffix(".py"), *path.glob("*.py")]
    text = "".join(source.read_text("utf-8") for source in sources if source.is_file())
    assert "__main__" in text or (path / "__main__.py").is_file() or path.suffix == ".sh"
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in text] == []
