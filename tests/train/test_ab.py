"""The A/B trains in the baseline's environment for real: half of its runs import what that environment holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.staging.shipped import file_key
from plumbline.environments.installed import keep_lock
from plumbline.environments.launch import run_training
from plumbline.night.experiments.ab import Interpreters, build_environments, run_ab
from plumbline.schema.captured import CapturedSpec, write_any_spec
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import read_record
from plumbline.schema.spec import write_spec
from tests.train.conftest import Workshop
from tests.train.wheels import make_wheel

MARKING = """import os
with open(os.environ["AB_MARK"], "a") as file:
    file.write("%s\\n" % os.environ.get("AB_SIDE"))
"""


TRAIN = """import torch
from plumbline import capture

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with capture("runs", model, optimizer, steps=40) as run:
    for _ in range(40):
        loss = model(torch.ones(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
"""


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AbOrder:
    """Return the order of an A/B whose baseline alone has a package, which marks each start of a process."""
    make_wheel(folder / "wheels", "abmark", "1.5", {"abmark.py": MARKING, "abmark.pth": "import abmark\n"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
    monkeypatch.setenv("AB_MARK", str(folder / "marks"))
    (wheel,) = (folder / "wheels").glob("*.whl")
    lock = folder / "lock.txt"
    lock.write_text(f"abmark==1.5 --hash=sha256:{digest_file(wheel)}\n")
    keep_lock(folder / "upgrade", lock)
    return AbOrder(packages=(("abmark", "1.5"),), num_blocks=5, seconds=0.001)


Run = Callable[[Path, str, str | Path], int]
"""Trains into a folder, for a side, with an interpreter; returns the exit code."""


def both_sides(order: AbOrder, folder: Path, run: Run) -> list[str]:
    """Return the sides of an A/B's runs, of which the first of each side trains and a later one repeats its record."""
    sides: list[str] = []

    def train(built: Interpreters | None, is_tonight: bool, out: Path) -> int:
        sides.append("tonight" if is_tonight else "baseline")
        first, code = folder / sides[-1], 0
        if not first.exists():
            code = run(first, sides[-1], built.tonight if is_tonight else built.baseline)
        shutil.copytree(first, out)
        return code

    code, found = run_ab(order, partial(build_environments, root=folder / "upgrade"), train, folder / "ab")
    assert code == 0
    marks = {line for line in (folder / "marks").read_text().split() if line != "None"}
    assert marks == {"baseline"}, "the package is in the baseline's environment alone"
    evidence = read_record(found).evidence.ab
    assert evidence.unavailable == ""
    assert [run.is_tonight for run in evidence.runs] == [True, False, False, True]
    assert all(run.metrics["throughput"] for run in evidence.runs)
    return sides


@pytest.mark.long
def test_a_command_trains_with_the_python_of_each_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = planted(tmp_path, monkeypatch)
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    digest = digest_file(script)
    (tmp_path / "store/files").mkdir(parents=True)
    shutil.copyfile(script, tmp_path / "store" / file_key(digest))
    spec = CapturedSpec(workload="mine", seed=7, steps=40, command="python train.py", files={"train.py": digest})
    write_any_spec(spec, tmp_path / "spec.json")

    both_sides(order, tmp_path, lambda out, side, python: run_training(
        tmp_path / "spec.json", out, data=f"file://{tmp_path / 'store'}", cache=tmp_path / "cache", platform="here",
        record_id="ab", environment={"AB_SIDE": side}, python=python, nonce="n",
    ))  # fmt: skip


@pytest.mark.long
def test_half_of_the_runs_train_in_the_baselines_environment(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = planted(tmp_path, monkeypatch)
    events: list[dict[str, Any]] = []
    write_spec(workshop.spec(probe=None, speed={"steps": 10}), tmp_path / "spec.json")
    sides = both_sides(order, tmp_path, lambda out, side, python: run_training(
        tmp_path / "spec.json", out, data=workshop.url, cache=tmp_path / "cache", platform="here", record_id="ab",
        environment={"AB_SIDE": side}, python=python, on_progress=events.append,
    ))  # fmt: skip
    assert {(event["event"], event["part"], event["steps"]) for event in events} == {("progress", "speed", 10)}
    assert sides == ["tonight", "baseline", "baseline", "tonight"]
    gone = AbOrder(packages=(("abmark", "0.1"),), num_blocks=5, seconds=0.001)
    with pytest.raises(ConfigurationError, match=r"cannot be built from hashes: .* abmark 0\.1"):
        build_environments(gone, tmp_path / "upgrade")
