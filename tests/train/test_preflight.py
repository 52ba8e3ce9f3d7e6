"""Checks before a training takes its folder, also under `torchrun`."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from plumbline.environments.interpreter import SUPPORTED, check_libraries
from plumbline.environments.launch import trainer_environment
from plumbline.environments.preflight import check_training
from plumbline.schema.errors import ConfigurationError, DiskFullError, UnavailableError
from plumbline.schema.record import read_record
from plumbline.train.record_files import write_record
from tests.commands import error_line, run
from tests.train.conftest import Trained, Workshop

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--platform", "Bad Name"), "--platform: 'Bad Name' is not a valid name"),
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
    assert words in error_line(*command, env=trainer_environment())
    assert read_record(out) == baseline.record


def test_the_process_itself_takes_no_file_for_a_folder(workshop: Workshop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    command = workshop.command(workshop.spec(), out)
    assert f"{out}: --out: is not a folder" in error_line(*command, env=trainer_environment())
    # What developers ask for beside it does not make a drift of it: 1 is Python's own answer to an exception.
    assert "Traceback" in run(*command, "--debug", code=2, env=trainer_environment()).stderr


def installed_as(folder: Path, name: str, number: str) -> dict[str, str]:
    """Return the trainer's environment, where a library's metadata has this version."""
    metadata = folder / f"{name}-{number}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    environment = trainer_environment()
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH"))))}


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("transformers", "4.40.2", "transformers 4.40.2 is older than 4.41 (hint: the trainer needs transformers 4.41"),
        ("torch", "2.3.1+cu121", "torch 2.3.1+cu121 is older than 2.4 (hint: the trainer needs torch 2.4 to 2.15)"),
    ],
)
def test_a_library_that_is_too_old_is_refused_in_one_line_before_it_trains(
    workshop: Workshop, tmp_path: Path, name: str, number: str, words: str
) -> None:
    command = workshop.command(workshop.spec(), tmp_path / "out")
    assert words in error_line(*command, env=installed_as(tmp_path, name, number))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "number", "num_notes"),
    [
        ("torch", "2.11.0a0+git0123", 0),  # a container's own build of the lowest
        ("torch", "2.13.9", 0),
        ("torch", "2.16.0", 1),
        ("transformers", "6.0.0rc1", 1),
        ("transformers", "main", 0),  # no number: nothing is known
    ],
)
def test_a_library_that_is_newer_than_tested_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: str, num_notes: int
) -> None:
    installed_as(tmp_path, name, number)
    monkeypatch.syspath_prepend(str(tmp_path))
    notes = check_libraries()
    assert len(notes) == num_notes
    assert all(f"{name} {number} is newer than what was tested" in note for note in notes)


def test_what_is_installed_by_default_lies_within_the_tested_range() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["trainer"]
    for name in ("torch", "transformers"):
        lowest, highest = SUPPORTED[name]
        (line,) = (entry for entry in extra if entry.startswith(name))
        minors = [tuple(map(int, number.split("."))) for number in re.findall(r"(\d+\.\d+)", line)]
        assert lowest <= minors[0] <= highest
        assert all(minor <= (highest[0], highest[1] + 1) for minor in minors)


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
