"""Round names, which become parts of keys and folders, are validated."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.cli.main import main
from tests.flows.small_suite import small_suite, to_toml


@pytest.mark.parametrize("name", ["..", "a/b", "{root}/elsewhere", "Monday", "-x", "x" * 64])
def test_a_round_with_an_invalid_name_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    state = tmp_path / "state"
    suite = tmp_path / "suite.toml"
    suite.write_text(to_toml(small_suite(state).model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    given = name.format(root=tmp_path)
    assert main(["run", str(suite), "--api", f"--round={given}", "--state", str(state)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        f"plumbline: --round: {given!r} is not a valid name of a round (hint: 1 to 63 of lower-case"
    )
    assert not state.exists()


def test_relative_file_addresses_are_resolved_and_others_kept(tmp_path: Path) -> None:
    suite = small_suite(tmp_path, platforms=("aws", "onprem"))
    relative = suite.platforms["onprem"].replace(data="file://.plumbline/data", outbox="file:///srv/outbox")
    given = suite.model_copy(update={"store": "file://central", "platforms": {**suite.platforms, "onprem": relative}})
    result = given.with_absolute_urls(tmp_path)
    assert result.store == f"file://{tmp_path}/central"
    assert result.platforms["onprem"].data == f"file://{tmp_path}/.plumbline/data"
    assert result.platforms["onprem"].outbox == "file:///srv/outbox"
    assert result.platforms["aws"] == suite.platforms["aws"]
