"""A round's folder is emptied at both ends: no name that somebody gives may lead to another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.cli.main import main
from plumbline.errors import ConfigurationError
from plumbline.workfolder import work_folder
from tests.flows.ground import small_suite, to_toml


def test_a_rounds_folder_is_empty_at_first_and_gone_in_the_end(tmp_path: Path) -> None:
    left = tmp_path / "work" / "20261120-020000-7f3a" / "left by a killed controller"
    left.mkdir(parents=True)
    with work_folder(tmp_path, "20261120-020000-7f3a") as folder:
        assert folder == left.parent
        assert list(folder.iterdir()) == []
    assert not folder.exists()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../../elsewhere", "{root}/elsewhere", "link"])
def test_no_name_leads_to_another_folder(tmp_path: Path, name: str) -> None:
    state, precious = tmp_path / "state", tmp_path / "elsewhere" / "file"
    for file in (precious, state / "central" / "file", state / "work" / "a" / "b" / "file"):
        file.parent.mkdir(parents=True)
        file.touch()
    (state / "work" / "link").symlink_to(precious.parent)
    with pytest.raises(ConfigurationError, match="leads out of"), work_folder(state, name.format(root=tmp_path)):
        pass
    assert precious.exists()
    assert (state / "central" / "file").exists()
    assert (state / "work" / "a" / "b" / "file").exists()


@pytest.mark.parametrize("name", ["..", "a/b", "{root}/elsewhere", "Monday", "-x", "x" * 64])
def test_a_round_that_is_no_name_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    state = tmp_path / "state"
    suite = tmp_path / "suite.toml"
    suite.write_text(to_toml(small_suite(state).model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    given = name.format(root=tmp_path)
    assert main(["run", str(suite), "--api", f"--round={given}", "--state", str(state)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"plumbline: --round: {given!r} is no name of a round (1 to 63 of lower-case letters")
    assert not state.exists()
