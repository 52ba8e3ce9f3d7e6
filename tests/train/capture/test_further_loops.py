"""Five loops of public shapes, written after the recorder: unchanged, not accused, and a planted fault is named."""

from __future__ import annotations

import runpy
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import plumbline
from bench.capture.loops.__main__ import HERE, OTHER, run
from bench.capture.loops.planted import FURTHER, expected, script

FAULTS = {"detector": "formula", "diffusion": "late", "speech": "content", "packed": "precision", "experts": "weights"}


def _train(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str = "") -> list[Any]:
    """Run a loop's script, and return all that it trained, and its generator."""
    folder.mkdir()
    (folder / "loop.py").write_text(script(name, fault))
    monkeypatch.setattr(sys, "argv", ["loop.py", str(folder / "record")])
    own = runpy.run_path(str(folder / "loop.py"), {"START": folder.parent / "start.safetensors"}, "__main__")
    state = own["optimizer"].state_dict()["state"].values()
    tensors = [*own["model"].state_dict().values(), *(each for entry in state for each in entry.values())]
    return [*(each for each in tensors if isinstance(each, torch.Tensor)), torch.get_rng_state()]


@pytest.mark.parametrize("name", FURTHER)
def test_a_further_loop_trains_the_same_bits_and_its_fault_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = SimpleNamespace(step=lambda *_: None, log=None)
    with monkeypatch.context() as context:
        context.setattr(plumbline, "capture", lambda *_, **__: nullcontext(bare))
        plain = _train(name, tmp_path / "bare", context)
    for folder in ("a", "b"):
        trained = _train(name, tmp_path / folder, monkeypatch)
        assert all(map(torch.equal, trained, plain))
    _train(name, tmp_path / "fault", monkeypatch, FAULTS[name])
    first, second, wrong = (plumbline.read_record(tmp_path / folder / "record") for folder in ("a", "b", "fault"))
    captured = first.record.evidence.captured
    assert captured.window.lost == ""
    assert not [why for why in captured.unknown if "Error" in why]
    assert plumbline.compare(first, second, throughput=False).verdict == "pass"
    assert plumbline.judge_alone(first).verdict == "pass"
    judgement = plumbline.compare(first, wrong, throughput=False)
    code, step, place = expected(name, FAULTS[name])
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", code)
    assert judgement.first_divergence.step == step
    assert place in str(judgement.first_divergence.at)


@pytest.mark.long
def test_a_batch_norm_with_another_eps_is_named_behind_another_instruction_set(tmp_path: Path) -> None:
    run(tmp_path, "resnet", HERE, ["0-honest"])
    run(tmp_path, "resnet", OTHER, ["0-honest", "formula"])
    first, honest, wrong = (
        plumbline.read_record(tmp_path / folder)
        for folder in (f"{HERE}/resnet/0-honest", f"{OTHER}/resnet/0-honest", f"{OTHER}/resnet/formula")
    )
    assert plumbline.compare(first, honest, throughput=False).verdict == "pass"
    judgement = plumbline.compare(first, wrong, throughput=False)
    assert (judgement.verdict, judgement.causes[0].code) == ("drift", "operator")
    assert (judgement.first_divergence.step, judgement.first_divergence.at) == (0, "1.norms.0")
