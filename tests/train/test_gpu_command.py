"""`make gpu`: refused without a GPU; its checks also run on a CPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from bench.gpu.__main__ import exit_code, main, run_check
from bench.gpu.bundle import commands, pins
from bench.gpu.checks import BRIEF, CHECKS
from bench.gpu.place import Place
from bench.gpu.rates import CHOICES, choices
from plumbline.schema.errors import InconclusiveError

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_gpu_it_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("no GPU")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_what_runs_is_judged_and_a_trainer_that_does_not_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that cannot be imported costs its own ratio alone. Peers are imported from where `make gpu` puts them.

    What `records` and `parts` found on a GPU is kept, and judged again in `tests/unit/judge/test_kept_gpu.py`.
    """
    peers, out = tmp_path / "peers", tmp_path / "out"
    (peers / "accelerate-0.0.1.dist-info").mkdir(parents=True)
    (peers / "accelerate-0.0.1.dist-info" / "METADATA").write_text("Name: accelerate\nVersion: 0.0.1\n")
    (peers / "accelerate").mkdir()
    (peers / "accelerate" / "__init__.py").touch()
    checks = [word for name in ("dropout", "throughput-base") for word in ("--only", name)]
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{peers}")
    assert main(["--device", "cpu", "--size", "tiny", *checks, "--out", str(out)]) == 3
    dropout, throughput = (json.loads((out / f"{name}.json").read_bytes()) for name in ("dropout", "throughput-base"))
    assert dropout["holds"] is True
    assert throughput["could_not_be_run"].startswith("trainer: ")
    assert "accelerate>=" in throughput["could_not_be_run"]
    assert {"ours/bare", "strict/default"} <= set(throughput["ratios"])
    assert "ours/trainer" not in throughput["ratios"]


def test_what_does_not_hold_and_what_could_not_be_run_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_place: Place) -> dict[str, object]:
        raise InconclusiveError("accelerate is not installed")

    place = Place("cpu", "tiny", tmp_path, tmp_path / "out")
    monkeypatch.setitem(CHECKS, "mfu-large", broken)
    monkeypatch.setitem(CHECKS, "probe-base", lambda _place: {"asked": {"at_most_60_s": False}, "holds": False})
    monkeypatch.setitem(CHECKS, "dropout", lambda _place: {"asked": {}, "holds": True})
    missing, failed, held = (run_check(name, place) for name in ("mfu-large", "probe-base", "dropout"))
    assert missing["could_not_be_run"] == "accelerate is not installed"
    assert [exit_code(result) for result in ([held], [held, missing], [held, missing, failed])] == [0, 3, 1]
    assert json.loads((tmp_path / "out" / "probe-base.json").read_bytes())["holds"] is False


@pytest.mark.long
def test_each_choice_of_speed_is_trained_and_one_that_is_refused_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHOICES, "refused", ("sequence-classification", {"attention": "flash_attention_2"}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = choices(Place("cpu", "tiny", tmp_path, tmp_path / "out"), "base", 32, 128, "packed", "gpt2", "refused")
    assert {name: "failed" in row for name, row in found["choices"].items()} == {
        "packed": False, "gpt2": False, "refused": True,
    }  # fmt: skip
    packed = found["choices"]["packed"]
    assert packed["mfu"] > 0  # on a busy CPU the peak is measured too low
    assert packed["speed"]["samples_per_second"] > 0


@pytest.mark.git
def test_the_bundle_has_every_check_as_a_command_and_pinned_packages() -> None:
    brief, *lines = commands().splitlines()[1:]
    assert "timeout 480 python3 -m bench.gpu --brief " in brief
    assert set(BRIEF) < set(CHECKS)
    assert [line.split("--only ")[1].split()[0] for line in lines] == list(CHECKS)
    assert all(len(line) < 2000 for line in lines)
    assert all("==" in pin for pin in pins())
