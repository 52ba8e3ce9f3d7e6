"""`plumbline train`: command line, few dependencies, one JSON document."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main
from plumbline.environments.launch import trainer_environment
from plumbline.environments.loaded import broken_library
from plumbline.environments.opened import LOADED
from plumbline.schema.record import read_record
from plumbline.schema.spec import write_spec
from tests.commands import error_line, run
from tests.train.conftest import Trained, Workshop


def arguments(workshop: Workshop, tmp_path: Path, *more: str) -> list[str]:
    write_spec(workshop.spec(), tmp_path / "spec.json")
    cache = str(workshop.folder / "cache")
    return ["train", str(tmp_path / "spec.json"), "--out", str(tmp_path / "out"), "--cache", cache, *more]


@pytest.mark.long
def test_a_failure_is_told_in_both_languages(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(workshop, tmp_path)
    given[given.index("--cache") + 1] = str(tmp_path / "empty")
    assert main([*given, "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["status"] == "failed"
    assert "--data" in captured.err
    assert main([*given, "--processes", "0"]) == 2


REFUSED = {
    "a platform that is not a name": (("--platform", "Bad Name"), "--platform: 'Bad Name' is not a valid name"),
    "an empty platform": (("--platform", ""), "--platform: '' is not a valid name"),
    "a record id that leads elsewhere": (("--record-id", "../x"), "--record-id: '../x' is not a valid name"),
    "a store that is none": (("--data", "nonsense"), "--data: 'nonsense' is not a store URL"),
    "a timeout that is not a number": (("--timeout", "nan"), "--timeout: nan is not positive"),
    "a timeout that is over": (("--timeout", "-1"), "--timeout: -1 is not positive"),
    "a timeout at once": (("--timeout", "0"), "--timeout: 0 is not positive"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_before_any_training(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    given, words = REFUSED[what]
    assert main(arguments(workshop, tmp_path, "--data", workshop.url, *given)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_folder_for_a_record(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    (tmp_path / "out").write_text("mine")
    given = arguments(workshop, tmp_path, "--data", workshop.url)
    given[given.index("--out") + 1] = str(tmp_path / "out" / below)
    assert main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'out' / below}: --out: " in line
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("folder", ["out", "cache"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_without_permission_is_refused(
    workshop: Workshop,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    exists: bool,
    folder: str,
) -> None:
    """The administrator, as whom tests may run, has every permission: the system's answers are played."""
    plain, refused = Path.mkdir, tmp_path / folder

    def mkdir(self: Path, *given: Any, **more: Any) -> None:
        if self == refused:
            raise PermissionError(13, "Permission denied")
        plain(self, *given, **more)

    given = arguments(workshop, tmp_path, "--data", workshop.url, "--cache", str(tmp_path / "cache"))
    if exists:
        refused.mkdir()
        monkeypatch.setattr(os, "access", lambda path, _: path != refused)
    else:
        monkeypatch.setattr(Path, "mkdir", mkdir)
    assert main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{refused}: --{folder}: " in line
    assert ("may not be written to" if exists else "Permission denied") in line


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OTHERS = {
    "spec": ({"seed": 8}, ()),
    "platform": ({}, ("--platform", "laptop")),
    "record id": ({}, ("--record-id", "s")),
    "kind": ({}, ("--experiment", "BUNDLE")),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_completed_record_is_not_written_over(
    workshop: Workshop, baseline: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    changes, given = OTHERS[what]
    shutil.copytree(baseline.folder, tmp_path / "out")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "experiment.json").touch()
    given = tuple(word.replace("BUNDLE", str(tmp_path / "bundle")) for word in given)
    command = arguments(workshop, tmp_path, "--data", workshop.url, "--platform", "here", "--record-id", "r", *given)
    write_spec(workshop.spec(**changes), tmp_path / "spec.json")
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'out'}: --out: contains a different completed record, whose {what} is" in line
    assert "name a different folder" in line
    assert content(tmp_path / "out") == content(baseline.folder)


def test_a_training_prints_one_document_and_may_be_repeated_but_not_from_a_store_that_is_none(
    workshop: Workshop, baseline: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(baseline.folder, tmp_path / "out")
    command = arguments(workshop, tmp_path, "--platform", "here", "--record-id", "r")
    assert main([*command, "--data", "nonsense"]) == 2
    assert content(tmp_path / "out") == content(baseline.folder)
    capsys.readouterr()
    assert main([*command, "--data", workshop.url, "--json"]) == 0
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    assert (result["status"], result["parts"]) == ("completed", ["probe"])
    # Without a terminal each part has a line of its own.
    assert any(line.startswith("probe ") for line in shown.err.splitlines()), shown.err
    again = read_record(tmp_path / "out")
    assert again.started_at > baseline.record.started_at
    assert (again.exit.status, again.platform) == ("completed", "here")
    assert again.evidence.probe.weights[-1] == baseline.probe.weights[-1]


BLOCKED = """
import gc, importlib.util, sys
gone = {"datasets", "psutil", "pynvml", "boto3", "azure", "prefect", "accelerate", "pandas"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in gone:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocker())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.split(".")[0] in gone else found(name, *more)
from plumbline.train.__main__ import main
code = main(sys.argv[1:])
print(gc.isenabled(), gc.get_freeze_count() > 100_000)
sys.exit(code)
"""


@pytest.mark.long
def test_a_process_with_few_dependencies_another_hash_seed_folder_and_user_gives_the_same_bits(
    workshop: Workshop, baseline: Trained, tmp_path: Path
) -> None:
    """The same process shows that imported objects are not searched for garbage."""
    out = tmp_path / "out"
    command = workshop.command(workshop.spec(), out)
    other = {"PYTHONHASHSEED": "12345", "HOME": str(tmp_path), "USER": "someone", "LOGNAME": "someone"}
    done = run(sys.executable, "-c", BLOCKED, *command[3:], env=trainer_environment(other), cwd=tmp_path)
    record = read_record(out)
    assert record.evidence == baseline.record.evidence
    assert [part.sha256 for part in record.parts] == [part.sha256 for part in baseline.record.parts]
    assert record.fingerprint.environment["PYTHONHASHSEED"] == "12345"
    assert done.stdout.split() == ["True", "True"]


def test_the_launcher_needs_no_torch() -> None:
    code = "import sys; import plumbline.environments.launch, plumbline.cli.train; sys.exit('torch' in sys.modules)"
    run(sys.executable, "-c", code)


HUB = "Metadata-Version: 2.1\nName: huggingface-hub\nVersion: 0.1\n"
BROKEN = {
    "another version": (
        {"huggingface_hub-0.1.dist-info/METADATA": HUB},
        "transformers",
        "found huggingface-hub==0.1",
        "ImportError",
    ),
    "a broken library": (
        {"torch/__init__.py": "raise OSError('libcudart.so.13: cannot open')"},
        "torch",
        "libcudart",
        "OSError",
    ),
    "a missing one": (
        {"safetensors/__init__.py": "import nowhere_at_all"},
        "nowhere_at_all",
        "is not installed",
        "ModuleNotFoundError",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("what", BROKEN)
def test_a_library_that_does_not_load_is_one_line(workshop: Workshop, tmp_path: Path, what: str) -> None:
    files, package, words, exception = BROKEN[what]
    for name, content in files.items():
        path = tmp_path / "libraries" / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    loaded = tmp_path / "loaded"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "libraries" / "site-packages"), LOADED: str(loaded)}
    command = workshop.command(workshop.spec(), tmp_path / "out")
    line = error_line(*command, env=environment)
    assert all(part in line for part in (f"{package}: ", words, "locks/trainer.txt")), line
    broken = broken_library(loaded)
    assert (broken.name, broken.exception) == ("safetensors" if what == "a missing one" else package, exception)
    assert not broken.message.startswith(str(tmp_path))
