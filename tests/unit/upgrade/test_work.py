"""The work folder: one upgrade at a time has it, and nothing of the user's in it is deleted."""

from __future__ import annotations

import pytest

from plumbline.cli.main import main
from plumbline.schema.errors import InconclusiveError
from tests.train.test_upgrade import SUITE

pytestmark = pytest.mark.long


class Command:
    """The command with no training; `meanwhile` is called where the trials would be."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.meanwhile = lambda: None
        monkeypatch.chdir(folder)
        monkeypatch.setattr("plumbline.upgrade.gate.UpgradeGate.judge", self._judge)
        (folder / "suite.toml").write_text(SUITE)
        (folder / "current.txt").write_text("a==1\n")
        (folder / "candidate.txt").write_text("a==1\nplumbline-test-b==2\n")

    def _judge(self, *_):
        self.meanwhile()
        raise InconclusiveError("no training here")

    def run(self, work="work"):
        return main(["upgrade", "suite.toml", "--current=current.txt", "--candidate=candidate.txt", f"--work={work}"])


@pytest.fixture
def command(tmp_path, monkeypatch):
    return Command(tmp_path, monkeypatch)


def test_a_second_upgrade_with_the_same_folder_is_refused_and_harms_nothing(command, capsys):
    run = command.folder / "work" / "plumbline-runs" / "trial-01" / "record.json"
    codes = []

    def second():
        if not codes:
            run.parent.mkdir(parents=True, exist_ok=True)
            run.write_text("{}")
            codes.append(None)
            codes[0] = command.run()
            assert run.exists()

    command.meanwhile = second
    command.run()
    assert codes == [2]
    refused = "plumbline: work: a different upgrade uses this folder (hint: wait for it, or choose a different folder"
    assert sum(line.startswith(refused) for line in capsys.readouterr().err.splitlines()) == 1
    assert command.run() == 3, "the folder is free again once the command has ended"


def test_two_upgrades_in_folders_of_their_own_do_not_wait_for_each_other(command):
    codes = []

    def second():
        if not codes:
            codes.append(None)
            codes[0] = command.run("other")

    command.meanwhile = second
    command.run()
    assert codes == [3]


def test_what_the_user_has_in_the_work_folder_stays(command):
    mine = [command.folder / name / "mine.txt" for name in ("runs", "lock")]
    for path in mine:
        path.parent.mkdir()
        path.write_text("mine")
    assert command.run(".") == 3
    assert [path.read_text() for path in mine] == ["mine", "mine"]


def test_the_runs_of_the_command_before_are_not_taken_for_this_ones(command):
    stale = command.folder / "work" / "plumbline-runs" / "trial-01" / "record.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    assert command.run() == 3
    assert not stale.exists()


def test_a_work_folder_that_is_a_file_is_one_line(command, capsys):
    (command.folder / "work").write_text("")
    assert command.run() == 2
    why = "cannot be the work folder: File exists (hint: name a folder that can be written)"
    assert capsys.readouterr().err == f"plumbline: work: --work: {why}\n"
