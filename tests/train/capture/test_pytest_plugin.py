"""pytest in a fresh project whose tests record a small training: what passes, what fails, and what it prints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from plumbline.records import load_record
from plumbline.records.accepted import accepted_text

from .loops import train

TRAINING = """
import os

import pytest

FAULTS = ["", "half", "smoothing"]


def train(folder, fault):
    import torch
    from torch import nn
    from torch.nn import functional

    from plumbline import capture

    torch.manual_seed(7)
    model = nn.Sequential(nn.Embedding(48, 16), nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 48))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with capture(folder, model, optimizer, steps=8, seed=7) as run:
        for _ in range(3 if fault == "half" else 8):
            ids = torch.randint(0, 48, (4, 9))
            logits, labels = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
            loss = functional.cross_entropy(logits, labels, label_smoothing=0.02 if fault == "smoothing" else 0.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step({"ids": ids}, loss)


@pytest.mark.parametrize("fault", FAULTS)
def test_training(plumbline_record, fault):
    assert os.environ["PLUMBLINE_RECORD"] == str(plumbline_record)
    train(None, fault if os.environ.get("PLANTED") else "")


class TestOther:
    def test_training(self, plumbline_record):
        train(plumbline_record, "")


def test_without_a_record():
    pass
"""
COPIES = """
import os
import shutil

import pytest

FAULTS = ["", "smoothing", "rate", "frozen", "accumulates", "part", "none"]


@pytest.mark.parametrize("fault", FAULTS)
def test_training(plumbline_record, fault):
    # The record of a training that ran before: this process needs no torch.
    assert os.environ["PLUMBLINE_RECORD"] == str(plumbline_record)
    planted = fault if os.environ.get("PLANTED") else ""
    if planted != "none":
        shutil.copytree(os.path.join(os.environ["RECORDS"], planted or "plain"), plumbline_record, dirs_exist_ok=True)
"""
MALFORMED = """
def test_training(plumbline_record):
    raise AssertionError("a training whose result nothing could judge")
"""
ACCEPTED = "model/__plumbline__/test_mine"


def run(project: Path, *options: str, code: int, **variables: str) -> str:
    """Run the project's tests from another folder; return what pytest prints, and check its exit code."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PLUMBLINE_"))}
    own |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "300", **variables}
    command = [
        sys.executable, "-m", "pytest", "-p", "plumbline.cli.pytest_plugin", f"--rootdir={project}",
        f"--basetemp={project.parent / 'temporary'}",  # pytest's own removes the folders of earlier runs of all tests
    ]  # fmt: skip
    done = subprocess.run(
        [*command, *options, str(project / "model")], cwd=project.parent, env=own, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout
    return done.stdout


def outcomes(text: str) -> Counter[str]:
    return Counter(
        {name: int(num) for num, name in re.findall(r"(\d+) (passed|failed|errors?)\b", text.splitlines()[-1])}
    )


def failure(text: str, fault: str) -> str:
    """Return the lines of one failed test."""
    return re.split(r"\n_+ ", text.split(f" test_training[{fault}] _")[1])[0]


def made(folder: Path, text: str) -> Path:
    """Return a new project with one test module."""
    (folder / "project/model").mkdir(parents=True)
    (folder / "project/model/test_mine.py").write_text(text)
    return folder / "project"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("records")
    for fault in ("", "smoothing", "rate", "frozen", "accumulates", "part"):
        train(folder / (fault or "plain"), fault, start=folder / "start.safetensors")
    (folder / "part/sketches.safetensors").unlink()
    return str(folder)


def test_without_an_accepted_record_a_training_is_judged_by_itself_and_the_summary_says_so(
    tmp_path: Path, records: str
) -> None:
    project = made(tmp_path, COPIES)
    text = run(project, code=1, PLANTED="1", RECORDS=records)
    assert outcomes(text) == {"passed": 4, "failed": 3}
    said = re.findall(r"^model/test_mine.py::test_training\[(.*)\]: no accepted record, judged by", text, re.MULTILINE)
    assert said == ["", "smoothing", "rate", "frozen"]
    assert "(by itself)\n" in failure(text, "accumulates")
    assert "gradients are not cleared" in failure(text, "accumulates")
    assert "sketches.safetensors: is missing from the record" in failure(text, "part")
    assert "the test wrote no record (hint: capture(plumbline_record" in failure(text, "none")
    assert len(re.findall(r"_\n.*\n(?=_|=)", text)) == 2  # a line each for "part" and "none"
    assert not (project / ACCEPTED).exists()


def test_beside_an_accepted_record_a_fault_fails_with_its_step_its_place_and_its_cause(
    tmp_path: Path, records: str
) -> None:
    project = made(tmp_path, COPIES)
    text = run(project, "--plumbline-accept", code=0, RECORDS=records)
    assert text.count(": written as accepted: ") == 7
    text = run(project, code=1, PLANTED="1", RECORDS=records)
    assert outcomes(text) == {"passed": 1, "failed": 6}
    assert text.count("::test_training[]: as the accepted record: every bit of the probe is the same") == 1
    for fault, line in {
        "smoothing": "drift: loss, loss, step 0: loss (likely): ",
        "rate": "drift: schedule, learning_rate, step 2: schedule (likely): step 2 was taken with",
        "frozen": "drift: gradient, blocks.1.down.weight, step 0: gradient (likely): blocks.1.down.weight is frozen",
    }.items():
        assert line in failure(text, fault)
        assert f"test_training[{fault}].json (hint: if the change is intended" in failure(text, fault)
        assert f"model/test_mine.py::test_training[{fault}] - Failed: {line}" in text
    assert "(by itself)\n" in failure(text, "accumulates")


@pytest.mark.long
def test_two_processes_write_accepted_records_and_a_fault_fails_in_real_trainings(tmp_path: Path) -> None:
    project = made(tmp_path, TRAINING)
    text = run(project, "-p", "xdist", "-n", "2", "--plumbline-accept", code=0)
    assert text.count(": written as accepted: ") == 4
    files = sorted((project / ACCEPTED).iterdir())
    names = [f"test_training[{name}].json" for name in ("", "half", "smoothing")]
    assert [file.name for file in files] == ["TestOther.test_training.json", *names]
    assert max(file.stat().st_size for file in files) <= 100_000

    text = run(project, "-p", "xdist", "-n", "2", code=0)
    assert text.count(": as the accepted record: every bit of the probe is the same") == 4
    text = run(project, "-k", "test_training[]", code=0, ATEN_CPU_CAPABILITY="avx2")
    assert text.count(": as the accepted record: ") == 1

    text = run(project, code=1, PLANTED="1")
    assert outcomes(text) == {"passed": 3, "failed": 2}
    assert "drift: loss, loss, step 0: loss (likely): " in failure(text, "smoothing")
    assert failure(text, "half").count("ended after 3 of 8 steps (by itself)") == 1


def test_a_malformed_accepted_record_is_an_error_before_the_training(tmp_path: Path, records: str) -> None:
    project = made(tmp_path, MALFORMED)
    (project / ACCEPTED).mkdir(parents=True)
    accepted = json.loads(accepted_text(load_record(Path(records) / "plain"))[1])
    accepted["schema_version"] = 2
    path = project / ACCEPTED / "test_training.json"
    path.write_text(json.dumps(accepted))
    text = run(project, code=1)
    assert outcomes(text) == {"error": 1}
    assert f"\naccepted record: {path}: schema_version: " in text
    assert len(re.findall(r"_\n.*\n(?=_|=)", text)) == 1  # one line, and no error behind it


def test_pytest_starts_without_what_judges(tmp_path: Path) -> None:
    project = made(
        tmp_path,
        "import sys\n\ndef test_light():\n"
        "    assert not {'torch', 'pydantic', 'numpy', 'pyarrow'} & set(sys.modules)\n",
    )
    text = run(project, code=0)
    assert outcomes(text) == {"passed": 1}
    assert " plumbline " not in text


def test_names_of_parameters_that_no_file_can_have_get_files_of_their_own(tmp_path: Path) -> None:
    project = made(
        tmp_path,
        "import pytest\nfrom pathlib import Path\nfrom plumbline.cli.pytest_plugin import _accepted_file\n\n"
        "@pytest.mark.parametrize('name', ['a/b', 'a_b', 'a::b', '../c', 'd' * 300])\n"
        "def test_name(name, request):\n"
        "    file = _accepted_file(request.node)\n"
        "    assert file.parent == Path(__file__).parent / '__plumbline__' / 'test_mine'\n"
        "    print(file.name)\n",
    )
    names = re.findall(r"test_name\S*\.json", run(project, "-s", "-q", code=0))
    assert len({*names}) == 5
    assert max(map(len, names)) < 130
