"""A loop's loss is proven by the definition that the team gives, beside a healthy record and alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

import plumbline
from plumbline.records import LoadedRecord
from plumbline.schema.errors import ConfigurationError
from plumbline.train.capture.loss import Definition
from tests.said import said

from .loops import LENGTH, ROWS, WORDS, make

STEPS = 5


def smoothed(share: float) -> Callable[[Any, Any], torch.Tensor]:
    """Return a loss of logits and a batch, with smoothed labels."""

    def loss(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits, labels = outputs[:, :-1].flatten(0, 1), batch["labels"].flatten()
        return functional.cross_entropy(logits, labels, label_smoothing=share)

    return loss


def train(folder: Path, start: Path, share: float = 0.1, definition: Any = None, scale: float = 1.0) -> LoadedRecord:
    """Train with `share`; the definition says 0.1 unless another is given. `scale` is that of the backward pass."""
    model, optimizer = make("")
    generator = torch.Generator().manual_seed(1)
    given = {"loss": smoothed(0.1) if definition is None else definition, "start": start}
    with plumbline.capture(folder, model, optimizer, steps=STEPS, seed=7, **given) as run:
        for _ in range(STEPS):
            ids = torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator)
            batch = {"ids": ids, "labels": ids[:, 1:].clone()}
            loss = smoothed(share)(model(ids), batch)
            optimizer.zero_grad()
            (loss * scale).backward()
            optimizer.step()
            run.step(batch, loss)
    return plumbline.read_record(folder)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> LoadedRecord:
    folder = tmp_path_factory.mktemp("loss")
    return train(folder / "honest", folder / "start.safetensors")


def _start(honest: LoadedRecord) -> Path:
    return honest.folder.parent / "start.safetensors"


def _proven(record: LoadedRecord) -> list[str]:
    probe = record.record.evidence.probe
    return [each.name for proof in probe.proofs for each in proof.errors if each.stage == "loss"]


def _unknown(record: LoadedRecord) -> list[str]:
    captured = record.record.evidence.captured
    return [why for why in captured.unknown if "loss" in why]


def test_an_honest_loss_is_proven_and_passes(honest: LoadedRecord, tmp_path: Path) -> None:
    record = train(tmp_path, _start(honest), scale=0.5)
    assert sorted(set(_proven(honest))) == ["logits", "loss"]
    assert not _unknown(honest)
    assert plumbline.judge_alone(honest).verdict == plumbline.judge_alone(record).verdict == "pass"
    same = train(tmp_path / "same", _start(honest))
    assert plumbline.compare(honest, same, throughput=False).verdict == "pass"


def test_a_loss_that_is_not_its_definition_is_named_beside_an_honest_one_and_alone(
    honest: LoadedRecord, tmp_path: Path
) -> None:
    wrong = train(tmp_path, _start(honest), 0.12)
    for judgement in (plumbline.compare(honest, wrong, throughput=False), plumbline.judge_alone(wrong)):
        assert [cause.code for cause in judgement.causes] == ["loss"]
        assert (judgement.first_divergence.stage, judgement.first_divergence.step) == ("loss", 0)


def test_what_is_trained_on_is_proven_and_not_only_what_is_shown(tmp_path: Path) -> None:
    model, optimizer = make("")
    with plumbline.capture(tmp_path, model, optimizer, steps=2, loss=smoothed(0.1)) as run:
        for _ in range(2):
            ids = torch.randint(0, WORDS, (ROWS, LENGTH))
            batch, logits = {"labels": ids[:, 1:].clone()}, model(ids)
            optimizer.zero_grad()
            smoothed(0.12)(logits, batch).backward()
            optimizer.step()
            run.step(batch, smoothed(0.1)(logits.detach(), batch))
    judgement = plumbline.judge_alone(plumbline.read_record(tmp_path))
    assert [cause.code for cause in judgement.causes] == ["loss"]
    assert judgement.first_divergence.at == "logits"


def test_two_definitions_are_a_different_formula(honest: LoadedRecord, tmp_path: Path) -> None:
    both = train(tmp_path, _start(honest), 0.1 + 1e-7, smoothed(0.1 + 1e-7))
    judgement = plumbline.compare(honest, both, throughput=False)
    assert [cause.code for cause in judgement.causes] == ["loss"]
    assert "definitions of the loss differ" in said(judgement.causes[0].why)


@pytest.mark.long
def test_behind_another_instruction_set_the_same_loss_is_named(honest: LoadedRecord, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from tests.train.capture.test_loss import smoothed, train; "
        f"to, start = Path({str(tmp_path)!r}), Path({str(_start(honest))!r}); "
        "train(to / 'honest', start); train(to / 'wrong', start, 0.12); train(to / 'both', start, 0.12, smoothed(0.12))"
    )
    variables = os.environ | {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", code], check=True, env=variables, timeout=120)
    others = [plumbline.read_record(tmp_path / name) for name in ("honest", "wrong", "both")]
    judgements = [plumbline.compare(honest, each, throughput=False) for each in others]
    assert [[cause.code for cause in each.causes] for each in judgements] == [[], ["loss"], ["loss"]]
    assert [each.verdict for each in judgements] == ["pass", "drift", "drift"]
    alone = [plumbline.judge_alone(each) for each in others]
    assert [each.verdict for each in alone] == ["pass", "drift", "pass"]


def _fails(_outputs: Any, _batch: Any) -> torch.Tensor:
    raise KeyError("targets")


@pytest.mark.parametrize(("definition", "why"), [
    (_fails, "KeyError: 'targets'"), (lambda _outputs, _batch: None, "returns no finite number"),
    (lambda outputs, _batch: outputs, "returns no finite number"),
    (lambda outputs, _batch: outputs.sum() * torch.nan, "returns no finite number"),
    (lambda _outputs, _batch: torch.ones(()), "does not require grad"), (nn.CrossEntropyLoss(), "TypeError"),
])  # fmt: skip
def test_a_definition_that_fails_is_unknown_and_ends_nothing(
    honest: LoadedRecord, tmp_path: Path, definition: Any, why: str
) -> None:
    record = train(tmp_path, _start(honest), definition=definition)
    (unknown,) = _unknown(record)
    assert "the definition of the loss: " in unknown
    assert why in unknown
    assert not _proven(record)
    assert plumbline.compare(honest, record, throughput=False).verdict == "pass"


def test_several_passes_of_a_step_are_unknown(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    definition = lambda outputs, _batch: outputs.square().mean()  # noqa: E731 - a short one
    with plumbline.capture(tmp_path, model, optimizer, steps=2, loss=definition) as run:
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
            run.step()
    record = plumbline.read_record(tmp_path)
    assert ["2 passes" in why for why in _unknown(record) if "definition" in why] == [True]


class Named(nn.Module):
    """Gives its own loss beside its logits, as transformers' models do."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.inner, self.margin = nn.Linear(6, 1), margin

    def forward(self, rows: torch.Tensor, targets: torch.Tensor) -> Any:
        logits = self.inner(rows)
        return SequenceClassifierOutput(loss=functional.huber_loss(logits, targets, delta=self.margin), logits=logits)


@pytest.mark.parametrize(("margin", "codes"), [(0.5, []), (0.4, ["loss"])])
def test_outputs_with_names_and_arguments_of_the_model_are_what_a_definition_reads(
    tmp_path: Path, margin: float, codes: list[str]
) -> None:
    model = Named(margin)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    huber = lambda outputs, batch: functional.huber_loss(outputs.logits, batch["targets"], delta=0.5)  # noqa: E731
    with plumbline.capture(tmp_path, model, optimizer, steps=3, loss=huber) as run:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6), torch.randn(8, 1)).loss.backward()
            optimizer.step()
            run.step()
    record = plumbline.read_record(tmp_path)
    assert not _unknown(record)
    assert set(_proven(record)) == {"loss", "logits"}
    assert [cause.code for cause in plumbline.judge_alone(record).causes] == codes


_CLASSES = torch.linspace(0.1, 1.0, 9)


def _entropy(outputs: torch.Tensor, batch: Any, **settings: Any) -> torch.Tensor:
    return functional.cross_entropy(outputs, batch["y"], **settings)


def _focal(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return ((1 - outputs.softmax(-1)[:, 0]) ** 2 * _entropy(outputs, batch, reduction="none")).mean()


def _contrast(outputs: torch.Tensor, _batch: Any) -> torch.Tensor:
    rows = functional.normalize(outputs)
    return functional.cross_entropy(rows @ rows.T / 0.1, torch.arange(len(rows)))


def _binary(outputs: torch.Tensor, batch: Any) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, 0], (batch["y"] > 4).float())


HONEST: dict[str, tuple[Definition, bool, torch.dtype]] = {
    "weighted": (partial(_entropy, weight=_CLASSES), False, torch.float32),
    "summed": (partial(_entropy, reduction="sum"), False, torch.float32),
    "focal": (_focal, False, torch.float32), "contrast": (_contrast, False, torch.float32),
    "squares": (lambda outputs, batch: functional.mse_loss(outputs[:, :5], batch["x"]), False, torch.float32),
    "binary": (_binary, False, torch.float32), "autocast": (_entropy, True, torch.float32),
    "bfloat16": (_entropy, False, torch.bfloat16),
}  # fmt: skip
"""Loss, autocast and format of weights."""


@pytest.mark.parametrize("name", HONEST)
def test_no_honest_loss_is_accused(name: str, tmp_path: Path) -> None:
    definition, autocast, dtype = HONEST[name]
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.Linear(32, 9)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with plumbline.capture(tmp_path, model, optimizer, steps=3, loss=definition) as run:
        for _ in range(3):
            batch = {"x": torch.randn(400, 5, dtype=dtype), "y": torch.randint(0, 9, (400,))}
            optimizer.zero_grad()
            with torch.autocast("cpu", enabled=autocast):
                loss = definition(model(batch["x"]), batch)
            loss.backward()
            optimizer.step()
            run.step(batch, loss)
    record = plumbline.read_record(tmp_path)
    is_half = dtype == torch.bfloat16
    assert set(_proven(record)) == ({"logits"} if is_half else {"logits", "loss"})
    assert ["computed in torch.bfloat16" in why for why in _unknown(record)] == [True] * is_half
    assert plumbline.judge_alone(record).verdict == "pass"


@pytest.mark.parametrize("given", [0.1, "cross_entropy", lambda outputs: outputs, lambda: 0])
def test_what_is_no_definition_is_one_line(tmp_path: Path, given: Any) -> None:
    model, optimizer = make("")
    with pytest.raises(ConfigurationError) as caught:
        plumbline.capture(tmp_path, model, optimizer, steps=2, loss=given)
    assert caught.value.key == "loss"
    assert "\n" not in str(caught.value)


def test_the_definition_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    def harmful(outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.rand(3)
        batch["labels"].zero_()
        return outputs.mul_(2.0).square().mean()

    states = []
    for definition in (None, harmful):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Linear(6, 2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        labels = torch.randint(0, 2, (8,))
        with plumbline.capture(tmp_path / str(definition is None), model, optimizer, steps=3, loss=definition) as run:
            for _ in range(3):
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(torch.randn(8, 6)), labels)
                loss.backward()
                optimizer.step()
                run.step({"labels": labels}, loss)
        states.append([*(value.clone() for value in model.parameters()), labels, torch.get_rng_state()])
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
