"""Checks before a training takes its folder, also under `torchrun`."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from plumbline.errors import ConfigurationError, DiskFullError, UnavailableError
from plumbline.launch import trainer_environment
from plumbline.preflight import check_training
from plumbline.schema.record import read_record
from plumbline.train.record_files import write_record
from tests.train.conftest import Trained, Workshop


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--platform", "Bad Name"), "--platform: 'Bad Name' is not a valid name"),
        (("--record-id", "../x"), "--record-id: '../x' is not a valid name"),
        (("--data", "nonsense"), "--data: 'nonsense' is not a store URL"),
        (("--platform", "here", "--record-id", "r", "--cache", "/dev/null"), "/dev/null: --cache: is not a folder"),
        (("--platform", "here", "--record-id", "r", "--experiment", "/proc"), "/proc: --experiment: contains no exper"),
        ((), "contains a different completed record, whose platform is here, not local"),
    ],
)
def test_the_process_itself_refuses_what_cannot_be_meant(
    workshop: Workshop, baseline: Trained, tmp_path: Path, given: tuple[str, ...], words: str
) -> None:
    """`torchrun` starts it without the command line, which asks the same."""
    out = tmp_path / "out"
    shutil.copytree(baseline.folder, out)
    command = workshop.command(baseline.record.spec, out, *given)
    done = subprocess.run(command, env=trainer_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr
    assert read_record(out) == baseline.record


def test_the_process_itself_takes_no_file_for_a_folder(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    command = workshop.command(workshop.spec(), out)
    done = subprocess.run(command, env=trainer_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert f"{out}: --out: is not a folder" in done.stderr
    # What developers ask for beside it does not make a drift of it: 1 is Python's own answer to an exception.
    done = subprocess.run(
        [*command, "--debug"], env=trainer_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, "Traceback" in done.stderr) == (2, True), done.stderr


def test_only_a_completed_record_keeps_its_folder(workshop: Workshop, baseline: Trained, tmp_path: Path) -> None:
    other = workshop.spec(seed=8)
    given = {"data": workshop.url, "cache": tmp_path / "cache", "platform": "here", "record_id": "r"}
    write_record(tmp_path, baseline.record)
    with pytest.raises(ConfigurationError, match="whose spec is"):
        check_training(other, tmp_path, **given)
    write_record(tmp_path, baseline.record.replace(exit={"status": "failed", "code": "stopped"}))
    check_training(other, tmp_path, **given)
    (tmp_path / "record.json").write_bytes(b"{")
    check_training(other, tmp_path, **given)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, UnavailableError)])
def test_a_failing_disk_is_no_wrong_usage(
    number: int, kind: type[Exception], workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed disk is retried, a wrong path is not."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(kind, match=os.strerror(number)):
        check_training(workshop.spec(), tmp_path / "out", data=None, cache=tmp_path, platform="here", record_id="r")


def test_what_cannot_be_taken_away_is_named(workshop: Workshop) -> None:
    out = workshop.out()
    (out / "rows.parquet").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"rows\.parquet: cannot be removed"):
        workshop.train(workshop.spec(), out=out)
