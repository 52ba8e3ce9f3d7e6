"""Planted faults of a loop are named at their step, beside a healthy one, and some by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import plumbline
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.verdict import Judgement
from tests.said import said

from .loops import CALLS, FAULTS, STEPS, make, train

LATE = {"order": 2, "token": 2, "labels": 2, "rate": 2, "skipped": 2, "accumulates": 1, "late": 2}
"""Step of faults that do not begin at the first one."""
ALONE = {"accumulates": "gradient", "unheld": "optimizer"}
"""Faults that a record shows by itself."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capture")
    train(folder / "plain", "", start=folder / "start.safetensors")
    return folder


def recorded(runs: Path, fault: str) -> Path:
    """Return a fault's record; the first test that asks for it trains."""
    folder = runs / (fault or "plain")
    if not folder.exists():
        train(folder, fault, start=None if fault == "seed" else runs / "start.safetensors")
    return folder


def judged(runs: Path, fault: str, other: Path | None = None) -> Judgement:
    sides = runs / "plain", other / (fault or "plain") if other is not None else recorded(runs, fault)
    return plumbline.compare(*map(plumbline.read_record, sides), throughput=False)


def check_cause(judgement: Judgement, fault: str) -> None:
    """Check that the fault is named, with its call where it changes one, or that an honest loop passes."""
    assert [cause.code for cause in judgement.causes][:1] == [FAULTS[fault]] * bool(fault), fault
    assert judgement.verdict == ("drift" if fault else "pass")
    if fault in CALLS:
        (cause,) = judgement.causes
        assert CALLS[fault] in map(said, cause.evidence)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_at_its_step(runs: Path, fault: str) -> None:
    judgement = judged(runs, fault)
    check_cause(judgement, fault)
    assert fault != "order" or "same rows" in said(judgement.causes[0].why)
    assert fault != "late" or said(judgement.first_divergence.at) == "head.weight"
    assert (judgement.first_divergence.step if judgement.first_divergence else None) == (
        LATE.get(fault, 0) if fault else None
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_alone_shows_what_contradicts_itself_and_nothing_else(runs: Path, fault: str) -> None:
    judgement = plumbline.judge_alone(plumbline.read_record(recorded(runs, fault)))
    assert [cause.code for cause in judgement.causes][:1] == [code for name, code in ALONE.items() if name == fault]
    assert judgement.verdict == ("drift" if fault in ALONE else "pass")


@pytest.mark.long
def test_behind_another_instruction_set_the_same_faults_are_named(runs: Path, tmp_path: Path) -> None:
    variables = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"}
    program = [sys.executable, "-m", "tests.train.capture.loops", str(tmp_path), str(runs / "start.safetensors")]
    subprocess.run(program, check=True, env=variables, timeout=120)
    for fault in FAULTS:
        check_cause(judged(runs, fault, tmp_path), fault)


def test_steps_that_are_recorded_at_other_places_accuse_nobody(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for draw in ("night-1", "night-2"):
        monkeypatch.setenv("PLUMBLINE_ROUND", draw)
        train(tmp_path / draw, start=runs / "start.safetensors")
        record = plumbline.read_record(tmp_path / draw)
        assert plumbline.compare(plumbline.read_record(runs / "plain"), record, throughput=False).verdict == "pass"
    recorded = [plumbline.read_record(tmp_path / draw).record.evidence.captured for draw in ("night-1", "night-2")]
    assert len({each.recorded for each in recorded if each is not None}) == 2


def test_a_loop_may_go_on_behind_its_record_or_end_before_it(tmp_path: Path) -> None:
    train(tmp_path / "longer", steps=STEPS + 4)
    train(tmp_path / "shorter", steps=3)
    longer = plumbline.read_record(tmp_path / "longer")
    assert plumbline.judge_alone(longer).verdict == "pass"
    assert not (tmp_path / "shorter" / "record.json").exists()


def _update(logits: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    functional.cross_entropy(logits.flatten(0, 1), torch.zeros(6).long()).backward()
    optimizer.step()


def test_a_loop_that_fails_leaves_a_record_that_says_so(tmp_path: Path) -> None:
    model, optimizer = make("")

    def loop() -> None:
        with plumbline.capture(tmp_path, model, optimizer, steps=9) as run:
            _update(model(torch.zeros(2, 3).long()), optimizer)
            run.step()
            raise ValueError("the loop's own")

    with pytest.raises(ValueError, match="the loop's own"):
        loop()
    record = plumbline.read_record(tmp_path)
    assert (record.record.exit.status, record.record.exit.message) == ("failed", "ended after 1 of 9 steps: ValueError")
    assert plumbline.judge_alone(record).verdict == "invalid"


def test_a_loop_that_hides_its_forward_pass_is_told_so(tmp_path: Path) -> None:
    model, optimizer = make("")
    seen = pytest.warns(UserWarning, match="no forward pass")
    with seen, plumbline.capture(tmp_path, model, optimizer, steps=2) as run:
        for _ in range(2):
            _update(model.forward(torch.zeros(2, 3).long()), optimizer)
            run.step()
    record = plumbline.read_record(tmp_path)
    captured = record.record.evidence.captured
    assert "no forward pass of the given model was seen" in captured.unknown[0]
    assert plumbline.judge_alone(record).verdict == "invalid"


@pytest.mark.parametrize(("given", "key"), [
    ({"steps": 0}, "steps"), ({"optimizer": "sgd"}, "optimizer"), ({"model": nn.ReLU()}, "model"),
    ({"model": 3}, "model"),
    ({"model": nn.LazyLinear(2)}, "model"), ({"folder": None}, "folder"), ({"config": ["none.toml"]}, "config"),
    ({"model": nn.Linear(2, 2).share_memory()}, "model"),
])  # fmt: skip
def test_arguments_that_cannot_be_meant_are_one_line(tmp_path: Path, given: dict[str, Any], key: str) -> None:
    model, optimizer = make("")
    arguments = {"folder": tmp_path, "model": model, "optimizer": optimizer, "steps": 2} | given
    places = [arguments.pop(name) for name in ("folder", "model", "optimizer")]
    with pytest.raises(ConfigurationError) as caught:
        plumbline.capture(*places, **arguments)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_a_record_of_another_loop_is_no_pair(runs: Path, tmp_path: Path) -> None:
    train(tmp_path / "plain", name="other")
    judgement = judged(runs, "", tmp_path)
    assert judgement.verdict == "invalid"
    assert said(judgement.findings[0].metric) == "SHA-256 of the spec"


def test_clipping_in_half_precision_is_one_factor(tmp_path: Path) -> None:
    for clipped in ("plain", "clipped"):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 40), nn.Linear(40, 3)).to(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with plumbline.capture(tmp_path / clipped, model, optimizer, steps=1) as run:
            model(torch.rand(4, 6).bfloat16()).square().mean().backward()
            if clipped == "clipped":
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            run.step()
    sides = [plumbline.read_record(tmp_path / name) for name in ("plain", "clipped")]
    judgement = plumbline.compare(*sides, throughput=False)
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == ("clipped", "clipping")


def test_a_loss_that_was_not_recorded_is_not_said_to_be_equal(tmp_path: Path) -> None:
    for power in (2, 3):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with plumbline.capture(tmp_path / str(power), model, optimizer, steps=1) as run:
            model(torch.rand(4, 6)).abs().pow(power).sum().backward()
            optimizer.step()
            run.step()
    judgement = plumbline.compare(*(plumbline.read_record(tmp_path / name) for name in "23"), throughput=False)
    assert judgement.causes[0].code == "gradient"
    assert "the loss, which was not recorded" in said(judgement.causes[0].why)


class _Centred(nn.Module):
    """Subtracts a mean, which makes a relative error of its input ten times as large."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows - rows.mean()


def test_what_a_model_makes_of_rounded_inputs_is_no_other_formula(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    for name, noise in (("plain", 0.0), ("rounded", 2e-7)):
        torch.set_num_threads(2 if noise else 1)  # another machine
        torch.manual_seed(1)
        model = nn.Sequential(_Centred(), nn.Linear(6, 6))
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with plumbline.capture(tmp_path / name, model, optimizer, steps=2) as run:
            for _ in range(2):
                rows = (
                    1 + 0.1 * torch.rand(64, 6) + noise * torch.randn(64, 6, generator=torch.Generator().manual_seed(2))
                )
                loss = model(rows).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.step(None, loss)
    torch.set_num_threads(threads)
    sides = [plumbline.read_record(tmp_path / name) for name in ("plain", "rounded")]
    judgement = plumbline.compare(*sides, throughput=False)
    assert [said(cause.why) for cause in judgement.causes] == []
