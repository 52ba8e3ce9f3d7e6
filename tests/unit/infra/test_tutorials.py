"""Commands of the tutorials, run in order; those that start a round, a training or a server are left out."""

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
RUN_ELSEWHERE = (
    "make run", "source ", "export ", "plumbline run ", "plumbline spec ", "plumbline train ", "plumbline compare ",
    "plumbline baseline accept ", "plumbline store site ", "plumbline doctor ", "plumbline deploy ",
    "plumbline upgrade suite.toml --current current.txt --candidate candidate.txt --allow-unhashed",
)  # fmt: skip


def lines(page: Path) -> list[str]:
    blocks = re.findall(r"^ *```bash\n(.*?)^ *```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in re.sub(r"\\\n\s*", " ", block).splitlines() if line.strip()]


def is_elsewhere(line: str) -> bool:
    return line.startswith(RUN_ELSEWHERE)


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
