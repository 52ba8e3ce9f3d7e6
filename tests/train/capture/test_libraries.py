"""Loops of Lightning and Accelerate: bits and rows of a step; run where the library is installed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import plumbline
from plumbline.train.digests import digest_tensors

STEPS = 3


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 2))


def _batches(count: int) -> Any:
    rows = [(torch.randn(5, 6), torch.randint(0, 2, (5,))) for _ in range(count)]
    return torch.utils.data.DataLoader(rows, batch_size=None)  # type: ignore[arg-type]


def _lightning(folder: Path | None, parts: int, *, is_whole: bool) -> nn.Module:
    import lightning  # type: ignore[import-not-found]  # noqa: PLC0415 - may be missing

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net, self.loss = _net(), nn.CrossEntropyLoss()

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            return self.loss((self if is_whole else self.net)(batch[0]), batch[1])

        def validation_step(self, batch: Any, _index: int) -> None:
            self.net(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    if is_whole:
        Module.forward = lambda self, rows: self.net(rows)
    module, callbacks = Module(), []
    if folder is not None:
        callbacks = [plumbline.lightning_callback(str(folder), steps=STEPS)]  # Plumbline
    trainer = lightning.Trainer(
        max_steps=STEPS + 1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=parts, gradient_clip_val=0.5, val_check_interval=2,
        limit_val_batches=1, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(module, _batches(8), _batches(1))
    return module


def _accelerate(folder: Path | None, parts: int) -> nn.Module:
    from accelerate import Accelerator  # type: ignore[import-not-found]  # noqa: PLC0415 - may be missing

    helper = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    model = _net()
    made = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = helper.prepare(model, made, _batches(STEPS * parts))
    record = plumbline.capture(folder, model, optimizer, steps=STEPS) if folder is not None else None  # Plumbline
    with record or nullcontext():  # Plumbline
        for rows, labels in loader:
            with helper.accumulate(model):
                helper.backward(functional.cross_entropy(model(rows), labels))
                optimizer.step()
                optimizer.zero_grad()
            if record is not None and helper.sync_gradients:
                record.step()  # Plumbline
    return model


def _check(train: Callable[[Path | None], nn.Module], folder: Path, rows: int) -> None:
    digests = []
    for place in (None, folder / "a", folder / "b"):
        torch.manual_seed(3)
        model = train(place)
        digests.append(digest_tensors(dict(model.state_dict()) | {"generator": torch.get_rng_state()}))
    assert len(set(digests)) == 1
    first, second = (plumbline.read_record(folder / name) for name in ("a", "b"))
    probe = first.record.evidence.probe
    assert tuple(probe.num_rows) == (rows,) * STEPS
    assert all({"gradient", "optimizer"} <= {error.stage for error in proof.errors} for proof in probe.proofs)
    assert plumbline.compare(first, second, throughput=False).verdict == "pass"
    assert plumbline.judge_alone(first).verdict == "pass"


@pytest.mark.lightning
@pytest.mark.filterwarnings("ignore")  # Lightning's own advice
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_lightning_is_recorded_step_by_step(parts: int, is_whole: bool, tmp_path: Path) -> None:
    _check(lambda folder: _lightning(folder, parts, is_whole=is_whole), tmp_path, 5 * parts)


@pytest.mark.accelerate
@pytest.mark.parametrize("parts", [1, 2])
def test_accelerate_needs_no_callback(parts: int, tmp_path: Path) -> None:
    _check(lambda folder: _accelerate(folder, parts), tmp_path, 5 * parts)
