"""Commands of the tutorials, run in order; those that start a round, a training or a server are left out."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from drills.newcomer import clone_of_the_repository
from plumbline.cli.main import main
from plumbline.environments.locks import read_lock
from tests.unit.infra.documented_commands import ROOT

pytestmark = pytest.mark.long

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
            code = subprocess.run(["bash", "-c", command], check=False, timeout=300).returncode
        assert code == int(said[1] if said else 0), line


@pytest.mark.git
def test_the_lock_that_pip_freezes_in_a_clone_with_a_remote_leaves_the_clone_as_installed(tmp_path: Path) -> None:
    """With a remote, pip writes the clone as a package of a repository, which the tutorial of a CI failed on."""
    clone = clone_of_the_repository(tmp_path / "clone")
    about = tmp_path / "site" / "plumbline_training-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plumbline-training\nVersion: 0.1.0\n")
    (about / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
    freeze = [sys.executable, "-m", "pip", "freeze", "--path", str(about.parent)]
    frozen = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    assert "-e git+https://git.example.com/team/plumbline.git@" in frozen
    (tmp_path / "current.txt").write_text(f"{frozen}tqdm==4.67.1\n")
    lock = read_lock(tmp_path / "current.txt")
    assert list(lock.pins) == ["tqdm"]
    assert "plumbline-training: not judged" in "".join(lock.notes)
