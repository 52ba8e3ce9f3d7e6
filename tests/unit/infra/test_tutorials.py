"""Commands of the tutorials, in order: each is run here, or stands in the list with the test that runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from plumbline.cli.main import main
from tests.unit.infra.documented_commands import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
# Of three clouds: needs accounts, and says which tests run what.
TUTORIALS.remove(ROOT / "docs" / "tutorials" / "clouds.md")
# A round, a training or a server is too much to start here.
RUN_ELSEWHERE = {
    "make run": "tests/e2e/test_pass.py",
    "source ": "a setting of the shell",
    "export ": "a setting of the shell",
    "plumbline run ": "tests/e2e/test_drift.py, tests/e2e/test_pass.py",
    "plumbline spec ": "tests/train/test_notebook.py",
    "plumbline train ": "tests/train/test_cli.py",
    "plumbline compare ": "tests/unit/judge/test_speed.py, tests/unit/report/test_cli.py",
    "plumbline baseline accept ": "tests/flows/test_nights.py",
    "plumbline site ": "tests/unit/report/test_site.py",
    "plumbline doctor ": "tests/flows/test_doctor.py",
    "plumbline deploy ": "tests/flows/test_one_road.py",
    "plumbline upgrade suite.toml --current current.txt --candidate candidate.txt --allow-unhashed":
        "tests/unit/upgrade/test_unattended.py; asks the package index",
}  # fmt: skip


def lines(page: Path) -> list[str]:
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines() if line.strip()]


def is_elsewhere(line: str) -> bool:
    return any(line.startswith(start) for start in RUN_ELSEWHERE)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_commands_end_as_the_tutorial_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in lines(page):
        if is_elsewhere(line):
            continue
        command, _, comment = line.partition("#")
        said = re.search(r"exit code (\d)", comment)
        if command.startswith("plumbline "):
            code = main(shlex.split(command)[1:])
        else:
            code = subprocess.run(["bash", "-c", command], check=False, timeout=60).returncode
        assert code == int(said[1] if said else 0), line


def test_the_list_names_tests_that_exist_and_commands_that_are_there() -> None:
    said = [line for page in TUTORIALS for line in lines(page)]
    assert [start for start in RUN_ELSEWHERE if not any(line.startswith(start) for line in said)] == []
    named = {path for why in RUN_ELSEWHERE.values() for path in re.findall(r"tests/[\w/]+\.py", why)}
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
